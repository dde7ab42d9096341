"""Draft while the drafter is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.base import Seconds
from paradecode.methods.draft.budgets.fixed import Fixed


@dataclass
class Confidence(Fixed):
    """Nothing follows a node whose own probability is below ``threshold``.

    The rule of assisted generation in transformers: the token that was drawn in doubt is verified
    all the same, but the draft ends with it.
    """

    threshold: float = 0.4

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
