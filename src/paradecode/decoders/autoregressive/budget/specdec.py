"""SpecDec++: stop when a rejection has become likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.decoders.autoregressive.budget.acceptance_head import AcceptanceHead, AcceptanceLog
from paradecode.decoders.autoregressive.budget.base import Seconds, accepted_path
from paradecode.decoders.autoregressive.budget.fixed import Fixed

REFIT = 128
"""Judged tokens between two trainings of the head."""


@dataclass
class SpecDecPP(Fixed):
    """Stop when P(at least one token of the path is rejected) exceeds ``threshold``.

    The optimal stopping rule of the drafting process (Huang et al. 2024, arXiv 2405.19715). The
    paper predicts acceptance from the draft model's hidden state; this head reads the draft's
    probability, rank and depth, learns from the verifications of all requests of a tenant, and may
    be loaded instead.
    """

    threshold: float = 0.4
    head: AcceptanceHead | None = None
    _log: AcceptanceLog | None = None

    def limit(self, seq: Sequence) -> int:
        self._log = seq.shared("specdec++", AcceptanceLog)
        return super().limit(seq)

    def expand(
        self, seq: Sequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        survival = self._survival(tree)
        safe = [leaf == ROOT or 1 - survival[leaf] <= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(safe, bool)], seconds)

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        if len(tree) and not tree.sampled:
            lost = 1 - self._survival(tree) > self.threshold
            tree = tree.select(~np.array([p != ROOT and bool(lost[p]) for p in tree.parents]))
        return super().cut(seq, tree)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        log = self._log
        if len(tree) and log is not None:
            before = log.seen // REFIT
            log.add(tree, accepted_path(tree, verdict))
            if self.head is None and log.seen // REFIT > before:
                log.head.fit(log.inputs, log.accepted)

    def _survival(self, tree: TokenTree) -> NDArray[np.float64]:
        """float64 [M]: probability that the whole path to each node is accepted."""
        if len(tree) == 0:
            return np.empty(0)
        head = self.head or (self._log.head if self._log else AcceptanceHead())
        survival = head.predict(tree)
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                survival[node] *= survival[parent]
        return survival
