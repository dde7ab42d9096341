"""The budget ``specdec++``, which stops a draft when a rejection has become likely."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply, TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.networks import HIDDEN, ResidualHead
from paradecode.methods.draft.contracts import (
    Budget,
    DraftRows,
    Needs,
    Nodes,
    Seconds,
    needs_levels,
)
from paradecode.methods.parts import declare, local_path, parameter

FEATURES = ("log-odds of the estimate", "siblings of higher estimate", "depth", "one")
KEEP = 4096
"""The most draft tokens with a verdict that a log stores.

A higher number remembers older text and slows training down.
"""


def features(tree: TokenTree) -> NDArray[np.float64]:
    """Return the features of each node that are known before its verification.

    The result is float64 [M, len(FEATURES)] for M nodes.
    """
    estimate = np.clip(tree.estimates.astype(np.float64), 1e-4, 1 - 1e-4)
    same = tree.parents[:, None] == tree.parents[None, :]
    better = (same & (estimate[None, :] > estimate[:, None])).sum(axis=1)
    depth = np.log(tree.depths)
    return np.stack([np.log(estimate / (1 - estimate)), better, depth, np.ones(len(tree))], axis=1)


@dataclass
class AcceptanceHead:
    """Logistic regression on :func:`features`. Untrained, it returns the drafter's estimates."""

    weights: NDArray[np.float64] = field(default_factory=lambda: np.array([1.0, 0.0, 0.0, 0.0]))

    def predict(self, tree: TokenTree) -> NDArray[np.float64]:
        """Return float64 [M]: the probability that each node is accepted if its parent is."""
        return _sigmoid(features(tree) @ self.weights)

    def fit(
        self,
        inputs: NDArray[np.float64],
        accepted: NDArray[np.float64],
        rejection_weight: float = 1.0,
        ridge: float = 1.0,
    ) -> None:
        """Train by Newton's method on logged nodes.

        Args:
            inputs: float64 [N, len(FEATURES)], from :func:`features`.
            accepted: [N], 1 for an accepted node and 0 for a rejected one.
            rejection_weight: weight of a rejected node relative to an accepted one (6 in
                SpecDec++).
            ridge: strength of the pull towards the untrained weights.
        """
        prior = AcceptanceHead().weights
        importance = np.where(accepted > 0, 1.0, rejection_weight)
        w = self.weights.copy()
        for _ in range(20):
            p = _sigmoid(inputs @ w)
            gradient = inputs.T @ (importance * (p - accepted)) + ridge * (w - prior)
            curvature = (inputs.T * (importance * p * (1 - p))) @ inputs + ridge * np.eye(len(w))
            step = np.linalg.solve(curvature, gradient)
            w -= np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < 1e-8:
                break
        self.weights = w


class AcceptanceLog:
    """Stores the last ``KEEP`` draft tokens whose parents were accepted, and their verdicts."""

    def __init__(self) -> None:
        self.inputs = np.empty((0, len(FEATURES)))
        self.accepted = np.empty(0)
        self.head = AcceptanceHead()
        self.seen = 0

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.accepted.nbytes

    def add(self, tree: TokenTree, path: list[int]) -> None:
        """Record a verification that accepted the nodes of ``path``."""
        alive = {ROOT, *path}
        judged = np.array([int(parent) in alive for parent in tree.parents], bool)
        self.inputs = np.concatenate([self.inputs, features(tree)[judged]])[-KEEP:]
        outcome = np.isin(np.flatnonzero(judged), path).astype(np.float64)
        self.accepted = np.concatenate([self.accepted, outcome])[-KEEP:]
        self.seen += len(outcome)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0)))


REFIT = 128
"""Number of new verdicts between two trainings of the head.

A higher value trains less often, with more new tokens each time.
"""


@declare("budget", "specdec++", paper="SpecDec++", arxiv="2405.19715")
class SpecDecPP(Budget):
    """Stop when P(at least one token of the path is rejected) exceeds ``threshold``.

    This is the optimal stopping rule of the drafting process (Huang et al. 2024, arXiv 2405.19715).
    Without ``head``, a classifier predicts acceptance from the draft's probability, rank and depth.
    It learns from the verifications of all requests of a tenant.

    A head (``paradecode train acceptance-head``) that reads hidden states predicts as in the paper:
    from the hidden state of a draft token it predicts whether this token is accepted. This state is
    computed only after the token was drafted, so the newest token is never judged before it is
    included. The rule acts while the draft grows, and the whole grown draft is verified.
    """

    threshold: float = parameter(0.4, 0.0, 1.0, "highest risk of a rejection")
    head: str = local_path("head by `paradecode train acceptance-head`; empty: it learns")
    _head: ResidualHead | None = field(default=None, init=False, repr=False)
    _log: AcceptanceLog | None = None
    _seen: dict[int, float] = field(default_factory=dict, repr=False)
    _new: tuple[Nodes, NDArray[np.float32]] | None = None

    def __post_init__(self) -> None:
        if self.head:
            self._head = ResidualHead.open(self.head)
            self.networks = True
            self.reads_draft = self._head.facts["reads"] == HIDDEN

    def begin(self, method: str, needs: Needs) -> None:
        if self.reads_draft:
            needs_levels("acceptance_head", self.head, needs)

    def limit(self, seq: TokenSequence) -> int:
        self._log = seq.shared("specdec++", AcceptanceLog)
        return super().limit(seq)

    def see_draft(self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows) -> None:
        if len(tree) == 0:  # The root begins a new draft.
            self._seen, self._new = {}, None
            return
        self._new = nodes, rows.states

    def prepare(self, seq: TokenSequence, tree: TokenTree) -> Generator[Apply, Any, None]:
        if self._head is None or not len(tree):
            return
        if not self.reads_draft:  # This head reads only the tree.
            self._new = np.arange(len(tree), dtype=np.int32), features(tree).astype(np.float32)
        if self._new is not None:
            (nodes, inputs), self._new = self._new, None
            self._head.expect({"x": inputs})
            chances = yield Apply(self._head.network, {"x": inputs})
            self._seen.update(zip(nodes.tolist(), chances[:, 0].tolist(), strict=True))

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        survival = self._survival(tree)
        safe = [leaf == ROOT or 1 - survival[leaf] <= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(safe, bool)], seconds)

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        if len(tree) and not tree.sampled and not self.reads_draft:
            lost = 1 - self._survival(tree) > self.threshold
            tree = tree.select(~np.array([p != ROOT and bool(lost[p]) for p in tree.parents]))
        return super().cut(seq, tree)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        log = self._log
        if self._head is None and len(tree) and log is not None:
            before = log.seen // REFIT
            log.add(tree, tree.follow(verdict.tokens[:-1]))
            if log.seen // REFIT > before:
                log.head.fit(log.inputs, log.accepted)

    def _survival(self, tree: TokenTree) -> NDArray[np.float64]:
        """Return float64 [M]: the probability that the whole path to each node is accepted.

        For a head that reads hidden states, tokens whose state is not computed yet count as
        accepted.
        """
        if self._head is not None:
            survival = np.array([self._seen.get(node, 1.0) for node in range(len(tree))])
        else:
            survival = (self._log.head if self._log else AcceptanceHead()).predict(tree)
        return tree.along_paths(survival)
