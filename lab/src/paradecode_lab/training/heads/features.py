"""Provide the target's states over texts, which were kept at writing or are computed by prefill."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.heads.answers import Writer
from paradecode_lab.training.heads.texts import HeadText

SHARD = 64
"""Number of texts in a file of the cache."""


class Features:
    """The target's states over the texts of a training run, except at the last token of each text.

    Nothing follows the last token, so no draft begins there.

    Args:
        writer: reads the texts.
        texts: the texts of the run.
        layers: layers whose outputs are needed, ascending.
        folder: folder of the cache; its files belong to these texts and layers.
        most_bytes: the most bytes of the cache. States that do not fit are computed again at each
            use.
        written: folder with the states that were kept when the texts were written, one file for
            each round.
    """

    def __init__(
        self, writer: Writer, texts: Sequence[HeadText], layers: tuple[int, ...], folder: Path,
        most_bytes: float, written: Path | None = None,
    ) -> None:  # fmt: skip
        self.texts, self.layers, self._writer, self._folder = texts, layers, writer, folder
        self._written = {int(file.stem): file for file in written.glob("*.npy")} if written else {}
        self._width = len(layers) * writer.llm.config.hidden_size
        self._check_written()
        row = 2 * self._width
        # A shard does not contain states that were kept at writing, because they need no computing.
        rows = [0 if text.round in self._written else len(text.tokens) - 1 for text in texts]
        self._starts = np.concatenate([[0], np.cumsum(rows)])
        most_bytes -= sum(file.stat().st_size for file in self._written.values())
        ends = [self._starts[min(i + SHARD, len(texts))] for i in range(0, len(texts), SHARD)]
        self._shards = int(np.searchsorted(np.array(ends) * row, most_bytes, side="right"))

    def _check_written(self) -> None:
        """Raise InvalidInput if a file of kept states lacks states of texts of its round."""
        rows: dict[int, int] = {}
        for text in self.texts:
            rows[text.round] = max(rows.get(text.round, 0), text.row + len(text.tokens) - 1)
        for number, file in self._written.items():
            self._opened(file, rows.get(number, 0))

    def fill(self, tick: Progress) -> None:
        """Compute and store the files of the cache that are missing.

        It may be stopped at any moment.

        Args:
            tick: called before each file.

        Raises:
            InvalidInput: an existing file does not have the states of its texts.
        """
        for shard in range(self._shards):
            tick(shard, self._shards)
            every = range(shard * SHARD, min((shard + 1) * SHARD, len(self.texts)))
            wanted = [i for i in every if self.texts[i].round not in self._written]
            if not wanted:
                continue
            if self._file(shard).exists():
                self._shard(shard)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                part = self._file(shard).with_suffix(".part")
                with part.open("wb") as file:
                    np.save(file, np.concatenate(self._compute(wanted)))
                os.replace(part, self._file(shard))
        tick(self._shards, self._shards)

    def of(self, wanted: Sequence[int]) -> list[NDArray[np.float16]]:
        """Return the states, float16 [tokens - 1, layers * D], for each of these texts.

        Args:
            wanted: indices of the texts.
        """
        missing = [i for i in wanted if i // SHARD >= self._shards
                   and self.texts[i].round not in self._written]  # fmt: skip
        fresh = dict(zip(missing, self._compute(missing)))
        return [fresh[i] if i in fresh else self._kept(i) for i in wanted]

    def _kept(self, number: int) -> NDArray[np.float16]:
        text, shard = self.texts[number], number // SHARD
        if (file := self._written.get(text.round)) is not None:
            rows = slice(text.row, text.row + len(text.tokens) - 1)
            return self._opened(file, rows.stop)[rows]
        start, end = self._starts[number : number + 2] - self._starts[shard * SHARD]
        return self._shard(shard)[start:end]

    def _shard(self, number: int) -> NDArray[np.float16]:
        """Return the states of a shard; raise InvalidInput if it has too many or too few."""
        first, last = number * SHARD, min((number + 1) * SHARD, len(self.texts))
        rows = int(self._starts[last] - self._starts[first])
        return self._opened(self._file(number), rows, exactly=True)

    def _opened(self, file: Path, rows: int, exactly: bool = False) -> NDArray[np.float16]:
        """Return the states in a file; raise InvalidInput if it is damaged or has too few rows.

        Args:
            rows: the fewest rows.
            exactly: refuse a file that has more rows.
        """
        fix = "it is damaged, or of other texts: remove it, and the same command makes it again"
        try:
            found: NDArray[np.float16] = np.load(file, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            raise InvalidInput(f"states {file.name}", str(file.parent), fix) from None
        fits = found.ndim == 2 and found.shape[1] == self._width and found.dtype == np.float16
        if not fits or len(found) < rows or (exactly and len(found) > rows):
            raise InvalidInput(
                f"states {file.name}", str(file.parent), f"its shape is {found.shape}: {fix}"
            )
        return found

    def _compute(self, wanted: Sequence[int]) -> list[NDArray[np.float16]]:
        texts = [self.texts[i].tokens[:-1].tolist() for i in wanted]
        return self._writer.states(texts, self.layers) if texts else []

    def _file(self, shard: int) -> Path:
        return self._folder / f"{shard:06}.npy"
