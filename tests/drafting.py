"""A request and a target without an engine. They have only what a decoder sees."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from paradecode.core.decoder import TARGET, Decoder, Forward, ModelFacts, Reply, Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.specs import parse

Target = Callable[[list[int]], np.ndarray]
"""Maps the text so far to float [V], the logits of the next token."""


class Request:
    """Implements the part of :class:`paradecode.core.decoder.TokenSequence` that decoders use.

    The cache holds everything but the last committed token. ``curve`` maps a number of rows to the
    seconds of a step; without it the costs count as unknown.
    """

    neighbours, scratch = 0, 64

    def __init__(
        self,
        prompt: Sequence[int] = (0,),
        max_tokens: int = 40,
        stores: dict[str, Any] | None = None,
        vocabulary: int = 32,
        prediction: Sequence[int] | None = None,
        curve: Callable[[int], float] | None = None,
        stop_ids: Sequence[int] = (),
        **params: Any,
    ) -> None:
        self.params = SamplingParams(**{"max_tokens": max_tokens, "seed": 0, **params})
        self.text, self.prompt_length, self.cached = list(prompt), len(prompt), 0
        self.vocabulary, self.curve, self.stop_ids = vocabulary, curve, stop_ids
        self.prediction = None if prediction is None else np.array(prediction, np.int32)
        self.sampler = Sampler(self.params, np.array(prompt, np.int32), stop_ids)
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
        return self.pending_for()

    def pending_for(self, model: str = TARGET) -> np.ndarray:
        return self.tokens[self.cached :]

    @property
    def room(self) -> int:
        return self.params.max_tokens - len(self.output)

    @property
    def finished(self) -> bool:
        return self.room == 0 or (bool(self.output) and self.text[-1] in self.stop_ids)

    def about(self, model: str = TARGET) -> ModelFacts:
        return ModelFacts(layers=2, hidden_size=8, vocab_size=self.vocabulary)

    def step_seconds(self, rows: int, model: str = TARGET, keys: int | None = None) -> float | None:
        return self.curve(rows) if self.curve else None

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.stores:
            self.stores[name] = make()
        return self.stores[name]

    def commit(self, verdict: Verdict) -> None:
        assert not self.finished
        assert 1 <= len(verdict.tokens) == len(verdict.rows)
        assert len(verdict.tokens) <= self.room
        ends = [n for n, token in enumerate(verdict.tokens, 1) if token in self.stop_ids]
        kept = verdict.tokens[: ends[0] if ends else None]
        self.text += kept
        self.cached = len(self.text) - 1
        self.sampler.advance(kept)
        self.commits.append(kept)

    @property
    def tokens_per_step(self) -> float:
        return len(self.output) / len(self.commits)


def draft(drafter: Any, seq: Request, limit: int = 8) -> TokenTree:
    """Return the draft of a drafter, which must not ask the engine for anything."""
    with pytest.raises(StopIteration) as done:
        next(drafter.propose(seq, limit))
    assert len(done.value.value) <= limit
    return done.value.value


def reply_to(seq: Request, tree: TokenTree, target: Target) -> Reply:
    """Return the root's row, and one row for each node, computed from its own path."""
    texts = [seq.text + tree.tokens_to(node) for node in range(ROOT, len(tree))]
    return Reply(ArrayLogits(np.stack([target(text) for text in texts]).astype(np.float32)))


def play(method: str | Decoder, seq: Request, target: Target) -> Request:
    """Decode to the end with a method that asks only for forwards of the target."""
    decoder = parse(method)() if isinstance(method, str) else method
    steps = decoder.decode(seq)  # type: ignore[arg-type]
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration:
            return seq
        if isinstance(request, MultiStep):
            reply = StepsMade()  # This request makes no multiple steps.
            continue
        assert isinstance(request, Forward)
        assert request.tokens.tolist() == seq.pending.tolist()
        seq.trees.append(request.tree)
        reply = reply_to(seq, request.tree, target)


def certain(rule: Callable[[list[int]], int], vocabulary: int = 32) -> Target:
    """Return a target that is certain of ``rule(text)``."""
    return lambda text: 30.0 * (np.arange(vocabulary) == rule(text))


def hashed(vocabulary: int = 32, memory: int = 2, seed: int = 0) -> Target:
    """Return a target whose logits are random numbers that depend on the last ``memory`` tokens."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def target(text: list[int]) -> np.ndarray:
        last = tuple(text[-memory:])
        if last not in known:
            known[last] = np.random.default_rng([seed, *last]).normal(0, 3, vocabulary)
        return known[last]

    return target


def verdict_along(tree: TokenTree, tokens: Sequence[int], reply: Reply) -> Verdict:
    """Return the verdict of a target that writes ``tokens``.

    All but the last of them must be a path of the tree.
    """
    nodes = tree.follow(tokens[:-1])
    assert len(nodes) == len(tokens) - 1
    return Verdict(list(tokens), [0, *(node + 1 for node in nodes)], reply.logits)
