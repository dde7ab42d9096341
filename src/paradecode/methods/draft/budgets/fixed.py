"""A fixed number of nodes: the budget that all others start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import Seconds, reach_of
from paradecode.methods.draft.budgets.states import DraftRows


@dataclass
class Fixed:
    """Always up to ``count`` nodes, the most promising first.

    While a tree grows, a node is expanded as long as a child of it could still be among them, which
    makes the result the best tree of that size for the drafter's estimates (EAGLE-2's rule).
    """

    count: int

    @property
    def reads_draft(self) -> bool:
        return False

    @property
    def reads_target(self) -> bool:
        return False

    def limit(self, seq: Sequence) -> int:
        return self.count

    def expand(
        self, seq: Sequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        return leaves[reach_of(tree, leaves) > self._threshold(tree)]

    def grow(
        self,
        seq: Sequence,
        tree: TokenTree,
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        offered = reach_of(tree, parents)[:, None] * estimates
        order = np.argsort(-np.concatenate([tree.reach, offered.ravel()]), kind="stable")
        kept = np.zeros(len(order), bool)
        kept[order[: self.count]] = True
        return kept[len(tree) :].reshape(offered.shape) & (offered > 0)

    def see_draft(
        self, seq: Sequence, tree: TokenTree, nodes: NDArray[np.int32], rows: DraftRows
    ) -> None:
        pass

    def see_target(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        pass

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        return capped(tree, self.count)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        pass

    def _threshold(self, tree: TokenTree) -> float:
        """The reach that a new node must exceed to be among the best ``count``."""
        if len(tree) < self.count:
            return 0.0
        return float(np.sort(tree.reach)[-self.count]) if self.count else np.inf


def capped(tree: TokenTree, count: int) -> TokenTree:
    """The best ``count`` nodes; of a sampled tree those drawn first, as ranking would bias it."""
    return tree.first(count) if tree.sampled else tree.best(count)
