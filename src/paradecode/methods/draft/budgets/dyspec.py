"""DySpec: expand where acceptance is most likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sequence import Sequence
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import Budget, Seconds, reach_of
from paradecode.methods.parts import declare


@declare("budget", "dyspec", paper="DySpec", arxiv="2410.11744")
@dataclass
class DySpec(Budget):
    """Grow, level by level, every node that is reached with a probability above 1 / count.

    The threshold variant of DySpec's greedy rule (Xiong et al. 2024, arXiv 2410.11744): one draft
    forward a level instead of one a node. The greedy choice, the ``count`` nodes of largest reach,
    is then made among them; it is optimal for the drafter's estimates.
    """

    def expand(
        self, seq: Sequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        likely = reach_of(tree, leaves) > 1.0 / max(self.count, 1)
        return super().expand(seq, tree, leaves[likely], seconds)

    def grow(
        self,
        seq: Sequence,
        tree: TokenTree,
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        offered = reach_of(tree, parents)[:, None] * estimates
        return super().grow(seq, tree, parents, estimates) & (offered > 1.0 / max(self.count, 1))
