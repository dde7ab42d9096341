"""A request and a target without an engine, for drafters that share stores between requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from paradecode.core.logits import ArrayLogits
from paradecode.core.request import Forward, Reply
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.sequence import ModelFacts, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.registry import parse

Target = Callable[[list[int]], np.ndarray]
"""Text so far -> float [V], the logits of the next token."""


class Request:
    """Implements what drafters use of :class:`paradecode.core.sequence.Sequence`."""

    neighbours = 0

    def __init__(
        self,
        prompt: Sequence[int],
        max_tokens: int = 40,
        stores: dict[str, Any] | None = None,
        vocabulary: int = 32,
        prediction: Sequence[int] | None = None,
        curve: Callable[[int], float] | None = None,
        **params: Any,
    ) -> None:
        self.params = SamplingParams(**{"max_tokens": max_tokens, "seed": 0, **params})
        self.text = list(prompt)
        self.prompt_length, self.vocabulary, self.curve = len(prompt), vocabulary, curve
        self.prediction = None if prediction is None else np.array(prediction, np.int32)
        self.sampler = Sampler(self.params, np.array(prompt, np.int32), ())
        self.stores = {} if stores is None else stores
        self.commits: list[list[int]] = []
        self.trees: list[TokenTree] = []

    @property
    def tokens(self) -> np.ndarray:
        view = np.array(self.text, np.int32)
        view.flags.writeable = False
        return view

    @property
    def output(self) -> list[int]:
        return self.text[self.prompt_length :]

    @property
    def pending(self) -> np.ndarray:
        return self.tokens[-1:]

    @property
    def room(self) -> int:
        return self.params.max_tokens - len(self.output)

    @property
    def finished(self) -> bool:
        return self.room == 0

    def about(self, model: str = "target") -> ModelFacts:
        return ModelFacts(layers=2, hidden_size=8, vocab_size=self.vocabulary)

    def step_seconds(self, rows: int, model: str = "target") -> float | None:
        return self.curve(rows) if self.curve else None

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.stores:
            self.stores[name] = make()
        return self.stores[name]

    def commit(self, verdict: Verdict) -> None:
        assert 1 <= len(verdict.tokens) <= self.room
        self.text += verdict.tokens
        self.sampler.advance(verdict.tokens)
        self.commits.append(verdict.tokens)

    @property
    def tokens_per_step(self) -> float:
        return len(self.output) / len(self.commits)


def draft(drafter: Any, seq: Request, limit: int = 8) -> TokenTree:
    """What a drafter proposes; it must not ask the engine for anything."""
    with pytest.raises(StopIteration) as done:
        next(drafter.propose(seq, limit))
    assert len(done.value.value) <= limit
    return done.value.value


def reply_to(seq: Request, tree: TokenTree, target: Target) -> Reply:
    """The root's row, then one a node, each from its own path."""
    rows, paths = [target(seq.text)], {ROOT: list(seq.text)}
    for node in range(len(tree)):
        paths[node] = [*paths[int(tree.parents[node])], int(tree.tokens[node])]
        rows.append(target(paths[node]))
    return Reply(ArrayLogits(np.stack(rows).astype(np.float32)))


def play(spec: str, seq: Request, target: Target) -> Request:
    """Decode to the end with a method that asks for target forwards only."""
    steps = parse(spec)().decode(seq)  # type: ignore[arg-type]
    reply = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration:
            return seq
        assert isinstance(request, Forward)
        seq.trees.append(request.tree)
        reply = reply_to(seq, request.tree, target)


def certain(rule: Callable[[list[int]], int], vocabulary: int = 32) -> Target:
    """A target that is sure of ``rule(text)``."""
    return lambda text: 30.0 * (np.arange(vocabulary) == rule(text))


def hashed(vocabulary: int = 32, memory: int = 2, seed: int = 0) -> Target:
    """A target whose logits are random numbers that depend on the last ``memory`` tokens."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def target(text: list[int]) -> np.ndarray:
        last = tuple(text[-memory:])
        if last not in known:
            known[last] = np.random.default_rng([seed, *last]).normal(0, 3, vocabulary)
        return known[last]

    return target


def verdict_along(tree: TokenTree, tokens: Sequence[int], reply: Reply) -> Verdict:
    """The verdict of a target that says ``tokens``; they must leave the tree at the last one."""
    rows, node = [0], ROOT
    for token in tokens[:-1]:
        child = tree.child(node, token)
        assert child is not None
        node = child
        rows.append(node + 1)
    return Verdict(list(tokens), rows, reply.logits)
