"""States of the target over texts: read by prefill, and kept on disk while there is room."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Steps
from paradecode.core.request import Forward
from paradecode.core.sampling import SamplingParams
from paradecode.core.sequence import Sequence as TokenSequence
from paradecode.engine.prompt import NOTHING
from paradecode.llm import LLM
from paradecode.training.decoding import Progress, decode_all
from paradecode.training.heads.texts import HeadText

ROWS = 256
SHARD = 64
"""Texts of a file."""
TOGETHER = 16
LARGEST = 65504.0
"""Of float16: states beyond it are cut there."""


class StateReader:
    """A decoder of one request that commits no token and keeps states; see ``PromptReader``.

    Attributes:
        states: float16 [n, layers * D], the layers side by side.
    """

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._parts: list[NDArray[np.float16]] = []

    @property
    def states(self) -> NDArray[np.float16]:
        return np.concatenate(self._parts)

    def decode(self, seq: TokenSequence) -> Steps:
        tokens = seq.pending.copy()  # All of them: the engine has no prefix cache.
        for start in range(0, len(tokens), ROWS):
            rows = tokens[start : start + ROWS]
            reply = yield Forward(
                rows, positions=np.arange(start, start + len(rows), dtype=np.int32),
                visible=np.arange(start, dtype=np.int32), logits=np.arange(0, dtype=np.int32),
                hidden=self.layers,
            )  # fmt: skip
            wide = np.concatenate([reply.hidden[layer] for layer in self.layers], axis=1)
            self._parts.append(np.clip(wide, -LARGEST, LARGEST).astype(np.float16))
        seq.fill([], NOTHING, [], end="length")


class Features:
    """States over all texts of a run.

    Args:
        llm: its engine must have no prefix cache.
        layers: whose outputs are wanted, ascending.
        folder: of the cache; its files belong to these texts and layers.
        most_bytes: of the cache; shards beyond it are computed again whenever they are asked for.
    """

    def __init__(
        self, llm: LLM, texts: Sequence[HeadText], layers: tuple[int, ...], folder: Path,
        most_bytes: float,
    ) -> None:  # fmt: skip
        self.texts, self.layers, self._llm, self._folder = texts, layers, llm, folder
        folder.mkdir(parents=True, exist_ok=True)
        row = 2 * len(layers) * llm.config.hidden_size
        sizes = [len(text.tokens) * row for text in texts]
        ends = np.cumsum([sum(sizes[i : i + SHARD]) for i in range(0, len(texts), SHARD)])
        self._shards = int(np.searchsorted(ends, most_bytes, side="right"))
        self._starts = np.concatenate([[0], np.cumsum([len(text.tokens) for text in texts])])

    def fill(self, tick: Progress) -> None:
        """Make the files of the cache that are not there yet; it may be stopped at any moment."""
        for shard in range(self._shards):
            tick(shard, self._shards)
            if not self._file(shard).exists():
                wanted = range(shard * SHARD, min((shard + 1) * SHARD, len(self.texts)))
                part = self._file(shard).with_suffix(".part")
                with part.open("wb") as file:
                    np.save(file, np.concatenate(self._compute(wanted)))
                os.replace(part, self._file(shard))
        tick(self._shards, self._shards)

    def of(self, wanted: Sequence[int]) -> list[NDArray[np.float16]]:
        """float16 [tokens, layers * D] of each of these texts."""
        missing = [i for i in wanted if i // SHARD >= self._shards]
        fresh = dict(zip(missing, self._compute(missing)))
        return [fresh[i] if i in fresh else self._cached(i) for i in wanted]

    def _cached(self, text: int) -> NDArray[np.float16]:
        shard = text // SHARD
        start, end = self._starts[text : text + 2] - self._starts[shard * SHARD]
        return np.load(self._file(shard), mmap_mode="r")[start:end]

    def _compute(self, wanted: Sequence[int]) -> list[NDArray[np.float16]]:
        readers = [StateReader(self.layers) for _ in wanted]
        prompts = [self.texts[i].tokens.tolist() for i in wanted]
        once = [SamplingParams(max_tokens=1)] * len(prompts)
        decode_all(self._llm, prompts, readers.__getitem__, once, lambda *_: None, TOGETHER)
        return [reader.states for reader in readers]

    def _file(self, shard: int) -> Path:
        return self._folder / f"{shard:06}.npy"
