"""Let the target write answers or read texts, and record its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.completion import completion_of
from paradecode.core.decoder import Forward, Steps, TokenSequence
from paradecode.core.multi_step import MultiStep
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY
from paradecode.engine.prompt import NOTHING
from paradecode.llm import LLM
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode_lab.training.decoding import decode_all
from paradecode_lab.training.ngrams.own_text import TOGETHER, own_questions

ROWS = 256
"""Number of tokens of a text that are read in one forward."""
READ_TOGETHER = 16
LARGEST = 65504.0
"""The largest float16 number. Larger numbers in states are clipped to it."""


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer to a prompt, with the target's states.

    Attributes:
        text: the answer's text, without stop tokens.
        tokens: the answer's token ids, with stop tokens.
        states: float16 [n - 1, layers * D], the outputs of the recorded layers side by side. Prompt
            and answer have n tokens; the last one has no state.
    """

    text: str
    tokens: list[int]
    states: NDArray[np.float16]


class StateWriter:
    """A decoder that makes one token a forward, and records the outputs of some layers."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._parts: list[NDArray[np.float16]] = []
        self._steps = MultiStep(hidden=lambda: self.layers)

    @property
    def states(self) -> NDArray[np.float16]:
        """The recorded states, float16 [rows, layers * D]."""
        return np.concatenate(self._parts)

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            if (made := (yield self._steps)).count:
                self._parts.append(side_by_side([made.hidden[layer] for layer in self.layers]))
                continue
            reply = yield Forward(seq.pending, hidden=self.layers)
            self._parts.append(side_by_side([reply.hidden[layer] for layer in self.layers]))
            seq.commit(coupled(seq, EMPTY, reply))


class StateReader:
    """A decoder that reads a prompt, records the outputs of some layers, and adds no token.

    It serves one request; see ``PromptReader``.
    """

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._parts: list[NDArray[np.float16]] = []

    @property
    def states(self) -> NDArray[np.float16]:
        """The recorded states, float16 [rows, layers * D]."""
        return np.concatenate(self._parts)

    def decode(self, seq: TokenSequence) -> Steps:
        tokens = seq.pending.copy()  # The whole prompt: there is no prefix cache.
        for start in range(0, len(tokens), ROWS):
            rows = tokens[start : start + ROWS]
            reply = yield Forward(
                rows, positions=np.arange(start, start + len(rows), dtype=np.int32),
                visible=np.arange(start, dtype=np.int32), logits=np.arange(0, dtype=np.int32),
                hidden=self.layers,
            )  # fmt: skip
            self._parts.append(side_by_side([reply.hidden[layer] for layer in self.layers]))
        seq.fill([], NOTHING, [], end="length")


def side_by_side(states: Sequence[NDArray[np.float32]]) -> NDArray[np.float16]:
    """Put the states [rows, D] of several layers side by side: float16 [rows, layers * D]."""
    return np.clip(np.concatenate(states, axis=1), -LARGEST, LARGEST).astype(np.float16)


class Writer(Protocol):
    """Interface of an object that lets the target write answers and read texts.

    Attributes:
        llm: the target.
        together: number of texts that are written together; they form a round.
    """

    llm: LLM
    together: int

    def answers(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, layers: tuple[int, ...]
    ) -> list[Answer]:
        """Answer all prompts in one batch.

        Args:
            prompts: token ids of each prompt.
            layers: layers whose outputs are recorded.
        """
        ...

    def sampled(self, prompt: list[int], params: SamplingParams) -> list[Answer]:
        """Write a round of different answers to one prompt, without states."""
        ...

    def questions(self, number: int, seed: int) -> list[tuple[str, list[int]]]:
        """Let the model make up a round of users' questions.

        Returns:
            For each question its text, and its token ids in the chat format.
        """
        ...

    def states(
        self, texts: Sequence[Sequence[int]], layers: tuple[int, ...]
    ) -> list[NDArray[np.float16]]:
        """Return the outputs of the layers, float16 [tokens, layers * D], for each text."""
        ...


class EngineWriter:
    """A :class:`Writer` that uses the engine.

    The engine must have no prefix cache, because cached tokens would get no states.
    """

    together = TOGETHER

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def answers(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, layers: tuple[int, ...]
    ) -> list[Answer]:
        """See :class:`Writer`."""
        if not layers or not prompts:
            none = np.empty((0, 0), np.float16)
            made = self.llm.complete(prompts, params, decoder=None)
            return [Answer(each.text, each.token_ids, none) for each in made]
        writers = [StateWriter(layers) for _ in prompts]
        every, lot = [params] * len(prompts), len(prompts)
        done = decode_all(self.llm, prompts, writers.__getitem__, every, lambda *_: None, lot)
        made = [completion_of(sequence) for sequence in done]
        return [Answer(c.text, c.token_ids, w.states) for c, w in zip(made, writers)]

    def sampled(self, prompt: list[int], params: SamplingParams) -> list[Answer]:
        """See :class:`Writer`."""
        made = self.llm.complete([prompt], replace(params, n=TOGETHER), decoder=None)[0]
        none = np.empty((0, 0), np.float16)
        return [Answer(e.text, e.token_ids, none) for e in (made, *made.alternatives)]

    def questions(self, number: int, seed: int) -> list[tuple[str, list[int]]]:
        """See :class:`Writer`."""
        return next(own_questions(self.llm, (number + 1) * TOGETHER, seed, number * TOGETHER))

    def states(
        self, texts: Sequence[Sequence[int]], layers: tuple[int, ...]
    ) -> list[NDArray[np.float16]]:
        """See :class:`Writer`."""
        readers, once = [StateReader(layers) for _ in texts], SamplingParams(max_tokens=1)
        every = [once] * len(texts)
        decode_all(self.llm, texts, readers.__getitem__, every, lambda *_: None, READ_TOGETHER)
        return [reader.states for reader in readers]
