"""The target's answers, and its states while it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.completion import completion_of
from paradecode.core.decoder import Steps
from paradecode.core.multi_step import MultiStep
from paradecode.core.request import Forward
from paradecode.core.sampling import SamplingParams
from paradecode.core.sequence import Sequence as TokenSequence
from paradecode.core.tree import EMPTY
from paradecode.llm import LLM
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.training.decoding import decode_all

LARGEST = 65504.0
"""Of float16: states beyond it are cut there."""


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer to a prompt.

    Attributes:
        text: without stop tokens.
        tokens: with them.
        states: float16 [n - 1, layers * D] of prompt and answer, n tokens, but the last: the layers
            side by side.
    """

    text: str
    tokens: list[int]
    states: NDArray[np.float16]


class StateWriter:
    """Plain decoding that keeps the states behind some layers."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._parts: list[NDArray[np.float16]] = []
        self._steps = MultiStep(hidden=lambda: self.layers)

    @property
    def states(self) -> NDArray[np.float16]:
        """float16 [rows, layers * D]."""
        return np.concatenate(self._parts)

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            if (made := (yield self._steps)).count:
                self._parts.append(side_by_side([made.hidden[layer] for layer in self.layers]))
                continue
            reply = yield Forward(seq.pending, hidden=self.layers)
            self._parts.append(side_by_side([reply.hidden[layer] for layer in self.layers]))
            seq.commit(coupled(seq, EMPTY, reply))


def side_by_side(states: Sequence[NDArray[np.float32]]) -> NDArray[np.float16]:
    """float16 [rows, layers * D] of the states [rows, D] behind each layer."""
    return np.clip(np.concatenate(states, axis=1), -LARGEST, LARGEST).astype(np.float16)


def write_answers(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, layers: tuple[int, ...]
) -> list[Answer]:
    """Answer prompts in one batch.

    Args:
        llm: its engine must have no prefix cache.
        layers: whose states are kept.
    """
    if not layers or not prompts:
        none = np.empty((0, 0), np.float16)
        made = llm.generate(prompts, params, decoder=None)
        return [Answer(each.text, each.token_ids, none) for each in made]
    writers = [StateWriter(layers) for _ in prompts]
    every = [params] * len(prompts)
    done = decode_all(llm, prompts, writers.__getitem__, every, lambda *_: None, len(prompts))
    made = [completion_of(sequence) for sequence in done]
    return [Answer(c.text, c.token_ids, w.states) for c, w in zip(made, writers)]
