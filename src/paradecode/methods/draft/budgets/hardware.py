"""Hardware-aware size: one tree size for this machine, from averages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import Budget
from paradecode.methods.parts import declare

MEMORY = 0.95
PRIOR = 0.8
"""Assumed chance that one more node of a draft is accepted, before anything was seen."""


@declare("budget", "hardware", paper="Hardware-Aware Parallel Prompt Decoding", arxiv="2405.18628")
@dataclass
class Hardware(Budget):
    """Verify the n nodes that maximise E(n) / t(n), with E(n) what n nodes gained on average.

    The rule of Chen et al. 2024. Unlike ``auto`` it
    does not look at the draft at hand: every step verifies the same number of nodes.
    """

    weighs = True
    _gain: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._gain = np.asarray(PRIOR ** np.arange(1, self.count + 1), np.float64)

    def limit(self, seq: TokenSequence) -> int:
        base = seq.step_seconds(1)
        if base is None:
            return self.count
        expected = 1.0 + seq.neighbours + np.concatenate([[0.0], np.cumsum(self._gain)])
        seconds = [seq.step_seconds(1 + nodes) or base for nodes in range(self.count + 1)]
        # One node at the least: averages are only kept up by drafting.
        return max(int(np.argmax(expected / np.array(seconds))), min(1, self.count))

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        return tree.capped(self.limit(seq))

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Book the gain of the n-th most promising node; nodes that were not verified keep their
        record."""
        order = np.argsort(-tree.reach, kind="stable")[: self.count]
        brought = np.isin(order, tree.follow(verdict.tokens[:-1])).astype(np.float64)
        self._gain[: len(order)] += (1 - MEMORY) * (brought - self._gain[: len(order)])
        # A later node is never believed to bring more than an earlier one.
        self._gain = np.minimum.accumulate(self._gain)
