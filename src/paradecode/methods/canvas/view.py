"""A policy's view of a step, and its decision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.core.noise import Purpose, gumbel, key, uniform
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Marks, Positions, Tokens

Scores = NDArray[np.float64]
NO_POSITIONS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True)
class Window:
    """The positions in which masks may be decided: ``start`` to ``end`` (exclusive).

    Attributes:
        block: number of the block; caches refresh when it changes.
        span: start and end of the positions that share the planned steps of the block, if they are
            more than this (sliding) window.
        begin: where the block begins, if that is inside of the prompt.
    """

    start: int
    end: int
    block: int = 0
    span: tuple[int, int] | None = None
    begin: int | None = None

    @property
    def shared(self) -> slice:
        """The positions that share the planned steps of the block."""
        return slice(*(self.span or (self.start, self.end)))


@dataclass(frozen=True)
class Progress:
    """Counts of a request's steps and masks.

    Attributes:
        steps: forwards that the user plans for the whole canvas; by default one for each mask.
        step: forwards before this one.
        block_step: forwards of this block before this one.
        masks: masked positions of the canvas when decoding began.
        block_masks: masked positions of this block when it began.
        before: positions of all earlier blocks that were masked when those began.
    """

    steps: int
    step: int
    block_step: int
    masks: int
    block_masks: int
    before: int


@dataclass(frozen=True, eq=False)
class View:
    """The predictions of one forward; row k predicts position ``positions[k]``.

    Attributes:
        canvas: the state; policies read it and never change it.
        window: the positions in which masks may be decided.
        positions: int64 [K], ascending; the positions that the policy observes.
        eligible: bool [K], which of them are masked and in the window.
        proposals: int32 [K], the tokens that may be committed; never the mask token.
        confidence: float64 [K], probability of the proposal at temperature 1, after biases and
            penalties, before top-k and the like; the mask token is banned.
        logits: [K, V], after biases and penalties, mask token at -inf.
        raw: [K, V], the model's own logits.
        progress: counts of steps and masks.
        refresh: whether this forward computed every row of the canvas.
        seed: seed of the request's noise (see :mod:`paradecode.core.noise`).
    """

    canvas: Canvas
    window: Window
    positions: Positions
    eligible: Marks
    proposals: Tokens
    confidence: Scores
    logits: Logits
    raw: Logits
    progress: Progress
    refresh: bool
    seed: int

    @cached_property
    def margin(self) -> Scores:
        """float64 [K]: probability of the best token minus that of the second best."""
        return self.logits.margin()

    @cached_property
    def entropy(self) -> Scores:
        """float64 [K]: entropy of each row, in nats."""
        return self.logits.entropy()

    @cached_property
    def gap(self) -> Scores:
        """float64 [K]: best logit minus second best logit."""
        values = self.logits.top_k(2)[1].astype(np.float64)
        return values[:, 0] - values[:, -1]

    @property
    def inside(self) -> Marks:
        """bool [K]: positions in the window, masked or not."""
        return (self.positions >= self.window.start) & (self.positions < self.window.end)

    def uniform(self, step: int) -> Scores:
        """float64 [K]: noise of (seed, step, position) in (0, 1); for random orders."""
        return uniform(key(self.seed, step, Purpose.ORDER), self.positions)

    def gumbel(self, step: int) -> Scores:
        """float64 [K]: Gumbel noise of (seed, step, position)."""
        return gumbel(key(self.seed, step, Purpose.ORDER), self.positions)

    def best(self, scores: NDArray[np.floating], count: int) -> Positions:
        """The ``count`` eligible positions with the highest scores, best first.

        Args:
            scores: [K]; equal ones go by position, the lowest first.
        """
        rows = np.flatnonzero(self.eligible)
        order = np.argsort(-np.asarray(scores)[rows], kind="stable")
        return self.positions[rows[order[: max(count, 0)]]]

    def rows(self, positions: Positions) -> Positions:
        """int64: the rows of some observed positions."""
        return np.searchsorted(self.positions, positions)

    def within(self, window: Window) -> View:
        """The same forward with another window."""
        inside = (self.positions >= window.start) & (self.positions < window.end)
        return replace(self, window=window, eligible=inside & self.canvas.masked[self.positions])

    def tokens(self, decision: Decision) -> Tokens:
        """int32: the token for each position that a decision commits."""
        proposed = self.proposals.take(self.rows(decision.commit), mode="clip")
        return proposed if decision.tokens is None else decision.tokens

    def or_best(self, decision: Decision) -> Decision:
        """The decision; if it would do nothing, it commits the most confident position instead."""
        if len(decision.commit) or len(decision.revoke):
            return decision
        return replace(decision, commit=self.best(self.confidence, 1), tokens=None)

    def and_also(self, decision: Decision, rows: NDArray[np.integer | np.bool_]) -> Decision:
        """The decision with the proposals of some more rows to commit."""
        return replace(
            decision,
            commit=np.concatenate([decision.commit, self.positions[rows]]),
            tokens=np.concatenate([self.tokens(decision), self.proposals[rows]]),
        )


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision of a policy.

    Attributes:
        commit: masked, observed positions. If there are none and nothing is revoked, the most
            confident eligible position is committed, so that every forward makes progress.
        tokens: int32, one for each of ``commit``; default: the proposals.
        revoke: decided positions of the output to mask again. A policy that revokes must declare
            it (:attr:`Policy.revises`).
        truncate: the canvas is cut before this position (an end of text was found).
        refresh: whether the cache must recompute everything in the next forward.
    """

    commit: Positions = field(default_factory=lambda: NO_POSITIONS)
    tokens: Tokens | None = None
    revoke: Positions = field(default_factory=lambda: NO_POSITIONS)
    truncate: int | None = None
    refresh: bool = False
