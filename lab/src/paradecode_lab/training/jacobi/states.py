"""Record greedy answers, and the states of the Jacobi iteration that leads to each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Decoder, Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.llm import LLM
from paradecode.methods.draft.drafters.jacobi import random_tokens
from paradecode.methods.draft.loop import MAX_DRAFT, Drafter, assemble
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.samples import FIELD, Origin, Samples
from paradecode_lab.training.unmasking.workload import CanvasWorkload

WHOLE = {"num_speculative_tokens": MAX_DRAFT, "budget": "fixed"}
"""Settings with which a draft may be a whole block."""


@dataclass(frozen=True, eq=False)
class JacobiStates(Samples):
    """M texts of at most N tokens, and S noisy copies of every text.

    In a copy, each block of the answer is one of the states of its iteration. Copies are cut into
    windows of S blocks. The first block of a window is clean, the last one is wrong from its first
    token if there is such a state, and the others lie in between (the paper's progressive noise).
    Copy s begins with block number s of a window.

    Attributes:
        block: number of tokens in a block.
        tokens: float32 [M, N], token ids of prompt and answer; 0 after the end.
        noisy: float32 [M, S, N], the copies.
        start, end: float32 [M], index of the answer's first token, and index after its last one.
    """

    kind: ClassVar = "jacobi states 1"
    axes: ClassVar = {"tokens": "MN", "noisy": "MSN", "start": "M", "end": "M"}

    block: int
    tokens: NDArray[np.float32]
    noisy: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]

    @classmethod
    def load(cls, path: Path, origin: Origin, **known: Any) -> JacobiStates:
        """Read states, and check their origin and that their tokens are below ``vocab_size``."""
        vocab_size = known.pop("vocab_size")
        made = super().load(path, origin, **known)
        ids = np.concatenate([made.tokens[:, None], made.noisy], 1)
        inside = (made.start > 0) & (made.start < made.end) & (made.end <= ids.shape[2])
        known_tokens = (ids % 1 == 0) & (ids >= 0) & (ids < vocab_size)
        sized = type(made.block) is int and 0 < made.block <= MAX_DRAFT and ids.shape[1] > 1
        if not (sized and inside.all() and known_tokens.all()):
            raise InvalidInput(FIELD, str(path), "it is damaged: name a new file")
        return made


@dataclass
class BlockIteration(Drafter):
    """A drafter that iterates one block of ``size`` tokens after another until it is right.

    It records each state. A block begins as random tokens of the text, and the last block is cut
    where there is no more room.
    """

    size: int
    whole = True
    states: list[list[list[int]]] = field(default_factory=list)
    _guess: list[int] = field(default_factory=list)
    _start: int = 0

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        if not self.states:
            self._start = len(seq.tokens)
        known = seq.tokens[self._start :].tolist()
        if len(known) >= self.size * len(self.states):
            self.states.append([])
            self._guess = random_tokens(seq, self.size * len(self.states) - len(known))
        known = known[self.size * (len(self.states) - 1) :]
        self.states[-1].append([*known, *self._guess])
        return TokenTree.chain(np.array(self._guess[:limit], np.int32))

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        said = reply.logits.argmax()[1:].tolist()
        corrected = [*said, *self._guess[len(said) + 1 :]]
        # The prediction after the last guess is outside the block.
        self._guess = corrected[len(verdict.tokens) - 1 : len(self._guess) - 1]


def record_states(
    llm: LLM, workload: CanvasWorkload, block: int, window: int, progress: Progress
) -> JacobiStates:
    """Decode a workload block by block, greedily, and return texts and noisy copies.

    Raises:
        InvalidInput: for a model that is not autoregressive.
    """
    if llm.config.attention != "causal":
        fix = "name an autoregressive model, such as paradecode/tiny-autoregressive"
        raise InvalidInput("--model", llm.model, fix)
    prompts = workload.asked(llm)
    drafters = [BlockIteration(block) for _ in prompts]

    def loop(number: int) -> Decoder:
        return assemble("jacobi", drafters[number], WHOLE)

    made = decode_all(llm, prompts, loop, [workload.params()] * len(prompts), progress)
    ends = [len(prompt) + len(each.output) for prompt, each in zip(prompts, made, strict=True)]
    tokens = np.zeros((len(prompts), max(ends)), np.float32)
    for row, prompt, each in zip(tokens, prompts, made, strict=True):
        row[: len(prompt)] = prompt
        row[len(prompt) :][: len(each.output)] = each.output
    noisy = np.repeat(tokens[:, None], window, 1)
    for copies, drafter, each, prompt in zip(noisy, drafters, made, prompts, strict=True):
        for copy, row in enumerate(copies):
            at = len(prompt)
            row[at : at + len(each.output)] = noisy_answer(
                each.output, drafter.states, block, window, copy
            )
    starts = np.array([len(prompt) for prompt in prompts], np.float32)
    return JacobiStates(block, tokens, noisy, starts, np.array(ends, np.float32))


def noisy_answer(
    answer: Sequence[int],
    states: Sequence[Sequence[Sequence[int]]],
    block: int,
    window: int,
    copy: int,
) -> list[int]:
    """Return the answer with each block replaced by the state with the most fitting share of noise.

    The share is that of the tokens from the first wrong one on. It is planned to grow from 0 to 1
    over the blocks of a window. Among equally near states the earlier one is taken.
    """
    made: list[int] = []
    for number, first in enumerate(range(0, len(answer), block)):
        right = answer[first : first + block]
        seen = states[number] if number < len(states) else []  # The last token has no draft.
        wanted = (number + copy) % window / max(window - 1, 1)
        near = [abs(noise(state[: len(right)], right) - wanted) for state in (*seen, right)]
        made += [*seen, right][int(np.argmin(near))][: len(right)]
    return made


def noise(state: Sequence[int], right: Sequence[int]) -> float:
    """Return the share of tokens that come at or after the first wrong one.

    It is 0 if no token is wrong.
    """
    wrong = (at for at, (a, b) in enumerate(zip(state, right, strict=True)) if a != b)
    return 1 - next(wrong, len(right)) / max(len(right), 1)
