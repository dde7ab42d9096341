"""A sequence and a target without an engine: what a decoder sees, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paradecode.core.decoder import Decoder
from paradecode.core.logits import ArrayLogits
from paradecode.core.request import TARGET, Forward, Reply
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.sequence import ModelFacts, Verdict
from paradecode.core.tree import ROOT

Target = Callable[[list[int]], np.ndarray]
"""Text so far -> float [V], the logits of the next token."""


class FakeSequence:
    """Commits up to ``max_tokens``; the cache holds everything but the last committed token.

    ``curve`` says what a step of so many rows costs; without it nothing was measured yet.
    """

    neighbours = 0

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        stop_ids: Sequence[int] = (),
        curve: Callable[[int], float] | None = None,
    ) -> None:
        self.curve = curve
        self.stores: dict[str, Any] = {}
        self.params = params or SamplingParams()
        self._tokens = list(prompt)
        self.prompt_length, self._cached = len(prompt), 0
        self.sampler = Sampler(self.params, np.array(prompt, np.int32), stop_ids)
        self.stop_ids = set(stop_ids)
        self.finished = False
        self.commits: list[list[int]] = []
        self.drafts: list[int] = []

    @property
    def tokens(self) -> np.ndarray:
        view = np.array(self._tokens, np.int32)
        view.flags.writeable = False
        return view

    def about(self, model: str = TARGET) -> ModelFacts:
        return ModelFacts(layers=1, hidden_size=1, vocab_size=1 << 16)

    @property
    def output(self) -> list[int]:
        return self._tokens[self.prompt_length :]

    @property
    def pending(self) -> np.ndarray:
        return self.pending_for()

    def pending_for(self, model: str = TARGET) -> np.ndarray:
        return self.tokens[self._cached :]

    @property
    def room(self) -> int:
        return self.params.max_tokens - len(self.output)

    def step_seconds(self, rows: int) -> float | None:
        return self.curve(rows) if self.curve else None

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        return self.stores.setdefault(name, make())

    def commit(self, verdict: Verdict) -> None:
        assert not self.finished
        assert len(verdict.tokens) == len(verdict.rows) >= 1
        assert len(verdict.tokens) <= self.room
        kept = []
        for token in verdict.tokens:
            kept.append(token)
            if token in self.stop_ids:
                self.finished = True
                break
        self._tokens += kept
        self._cached = len(self._tokens) - 1
        self.sampler.advance(kept)
        self.commits.append(kept)
        self.finished = self.finished or self.room == 0


def answer(seq: FakeSequence, forward: Forward, target: Target) -> Reply:
    """The root's row, then one row a tree node, each from its own path."""
    assert forward.tokens.tolist() == seq.pending.tolist()
    tree = forward.tree
    rows = [target(seq.tokens.tolist())]
    paths: dict[int, list[int]] = {ROOT: []}
    for node in range(len(tree)):
        paths[node] = [*paths[int(tree.parents[node])], int(tree.tokens[node])]
        rows.append(target(seq.tokens.tolist() + paths[node]))
    return Reply(ArrayLogits(np.stack(rows).astype(np.float32)))


def play(decoder: Decoder, seq: FakeSequence, target: Target) -> list[int]:
    """Run a decoder that only makes target forwards; returns the output."""
    steps = decoder.decode(seq)
    reply = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration:
            return seq.output
        assert isinstance(request, Forward)
        seq.drafts.append(len(request.tree))
        reply = answer(seq, request, target)


def certain(rule: Callable[[list[int]], int], vocabulary: int = 32) -> Target:
    """A target that is sure of ``rule(text)``."""
    return lambda text: 30.0 * (np.arange(vocabulary) == rule(text))


def hashed(vocabulary: int = 8, memory: int = 2, seed: int = 0) -> Target:
    """A target whose logits are random numbers that depend on the last ``memory`` tokens."""
    cache: dict[tuple[int, ...], np.ndarray] = {}

    def target(text: list[int]) -> np.ndarray:
        last = tuple(text[-memory:])
        if last not in cache:
            cache[last] = np.random.default_rng([seed, *last]).normal(0, 2, vocabulary)
        return cache[last]

    return target
