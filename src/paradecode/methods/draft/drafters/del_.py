"""DEL: chooses the exit layer and the draft length that pay.

Each verification shows what every early exit of the model would have drafted.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import (
    TARGET,
    Forward,
    ModelFacts,
    Reply,
    Store,
    TokenSequence,
    Verdict,
)
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.budgets.base import Budget, Seconds
from paradecode.methods.draft.loop import Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.source import Source
from paradecode.methods.parts import parameter

MEMORY = 0.95

MOST_ROWS = 8
"""Rows of one verification that are looked at; more learn faster, but each costs a row of the LM
head at every exit."""

IDLE = 8
"""Factor by which looks become rarer while no exit pays; higher costs less, and notices later."""


class EarlyExits:
    """The record of each exit layer: its agreement with the target, and how sure it was."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        # Column 0: it was wrong; column 1: it was right. Before anything was seen, exits are even.
        self.count = np.full((len(layers), 2), 0.5)
        self.confidence = np.full((len(layers), 2), 0.25)

    def update(self, right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> None:
        """Book a round: [E, R], whether each exit chose each target token, and with which
        probability."""
        self.count *= MEMORY
        self.confidence *= MEMORY
        for column, which in enumerate((~right, right)):
            self.count[:, column] += which.sum(axis=1)
            self.confidence[:, column] += (which * confidence).sum(axis=1)

    def best(self, facts: ModelFacts, longest: int, rests: bool = True) -> tuple[int, int, float]:
        """The choice with most tokens per layer run: exit layer, draft length, and the confidence
        below which a draft stops.

        Args:
            longest: the longest draft.
            rests: whether shorter drafts, and none, may be chosen.
        """
        least = 0 if rests else longest
        head = facts.head_layers
        alpha = self.count[:, 1] / self.count.sum(axis=1)
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(alpha[:, None] ** lengths, axis=1)[:, least:]
        exits = np.array(self.layers)[:, None] + 1
        work = facts.layers + head + lengths[least:] * (exits + head)
        place, length = np.unravel_index(int(np.argmax(tokens / work)), tokens.shape)
        means = self.confidence[place] / self.count[place]
        return self.layers[place], least + int(length), float(means.mean())


@dataclass
class WhileSure(Budget):
    """A budget of a chain that ends with the first token whose probability is below
    ``threshold``."""

    drafter: ModelDrafter
    threshold: float

    def expand(
        self, seq: TokenSequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        sure = [leaf == ROOT or self.drafter.confidence(leaf) >= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(sure, bool)], seconds)


@drafter("del", paper="DEL", arxiv="2504.05598", aliases=("dynamic-exit-layer",))
@dataclass
class Del(ModelDrafter):
    """Early-exit self-speculation with the exit and length of most expected tokens per layer.

    A verification computes the hidden states of every layer; through the LM head they say what each
    exit would have drafted (its shadow tokens). Zarch et al. 2025. The paper looks at every layer,
    and first at 32 rows of the prompt. Here ``exits`` and at most 8 rows are looked at: all 29 of
    the default model, with 8 rows, would be 232 rows of its LM head, the work of 49 of its own.

    When: the model was trained for early exit. Others say little in their first layers: the default
    model gets slower.
    """

    needs = Needs(noise=True, draws=True, runs=(TARGET,), rests=True)

    exits: int = parameter(4, 1, 64, "exit layers to choose from, at even distances")
    interval: int = parameter(1, 1, 64, "steps between two looks at the shadow tokens")
    _exits: EarlyExits | None = field(default=None, repr=False)
    _states: NDArray[np.float32] | None = field(default=None, repr=False)
    _tokens: list[int] = field(default_factory=list)
    _start: int = 0
    _steps: int = 0

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        facts = seq.about()
        if self._exits is None:
            count = max(1, min(self.exits, facts.layers - 1))
            places = np.linspace(0, facts.layers - 1, count + 1)[:-1]
            layers = tuple(sorted({int(place) for place in places}))
            self._exits = seq.shared(f"del {layers}", lambda: EarlyExits(layers))
        if self._states is not None:
            yield from self._look(seq, self._exits, self._states)
            self._states = None
        layer, length, threshold = self._exits.best(facts, limit, self.offer.budget.weighs)
        self._steps += 1
        interval = self.interval if length else IDLE * self.interval
        self.hidden = self._exits.layers if self._steps % interval == 0 else ()
        if length == 0:
            return EMPTY
        source = Source(layers=tuple(range(layer + 1)), hidden=self.hidden)
        until = WhileSure(length, self, threshold)
        return (yield from self.grow(seq, length, source, 1, budget=until))

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        super().observe(seq, tree, reply, verdict)
        if self.hidden and self._exits and reply.hidden.keys() >= set(self.hidden):
            # Logits have a row for the root and each node, and hidden states end with the same.
            at = np.array(verdict.rows[:MOST_ROWS]) - (1 + len(tree))
            self._states = np.concatenate([reply.hidden[e][at] for e in self._exits.layers])
            self._tokens = verdict.tokens[:MOST_ROWS]
            self._start = len(seq.tokens)

    def _look(
        self, seq: TokenSequence, exits: EarlyExits, states: NDArray[np.float32]
    ) -> Generator[Forward, Reply, None]:
        """Put the hidden states of the last verification through the LM head; no layer runs for
        that."""
        rows, count = len(states), len(self._tokens)
        reply = yield Forward(
            np.zeros(rows, np.int32),
            resume=states,
            layers=(),
            store=Store.NONE,
            positions=np.zeros(rows, np.int32),
            logits=np.arange(rows, dtype=np.int32),
        )
        first = self._start - len(seq.tokens)
        keys = [seq.sampler.noise_key(first + offset) for offset in range(count)]
        shadow = reply.logits.sample(seq.sampler.warp, keys * len(exits.layers))
        confidence = np.exp(reply.logits.log_probability(shadow[:, None]))[:, 0]
        right = shadow.reshape(-1, count) == np.array(self._tokens)
        exits.update(right, confidence.reshape(-1, count))
