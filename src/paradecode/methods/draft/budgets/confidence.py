"""Draft while the drafter is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.base import Budget, Seconds
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare


@declare(
    "budget",
    "confidence",
    paper="Dynamic Speculation Lookahead (assisted generation in transformers)",
    arxiv="2405.04304",
)
@dataclass
class Confidence(Budget):
    """Stop behind a node whose own probability is below ``threshold``.

    The unsure node itself is still verified.
    """

    threshold: float = parameter(0.4, 0.0, 1.0, "least probability of a node that goes on")

    def expand(
        self, seq: Sequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        sure = [leaf == ROOT or tree.estimates[leaf] >= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(sure, bool)], seconds)

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        if not tree.sampled:
            doubted = tree.estimates < self.threshold
            below = [parent != ROOT and bool(doubted[parent]) for parent in tree.parents]
            tree = tree.select(~np.array(below, bool))
        return super().cut(seq, tree)
