"""What a budget is: how many draft tokens are worth drafting and verifying now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.states import DraftRows

Seconds = Callable[[int], float]
"""What a draft forward over so many rows takes; 0 when it was not measured."""


class Budget(Protocol):
    """Decides over drafts. One object a request, so it may learn from the request's verifications.

    ``limit``, ``cut`` and ``observe`` serve every drafter. A drafter that runs a model, and so pays
    for each level of its tree, also asks ``expand`` before a forward and ``grow`` after it.

    Attributes:
        reads_draft: the rows of each draft forward are to be shown to ``see_draft``.
        reads_target: each verification is to be shown to ``see_target``.
    """

    @property
    def reads_draft(self) -> bool: ...

    @property
    def reads_target(self) -> bool: ...

    def limit(self, seq: Sequence) -> int:
        """The most nodes a draft may have at this step; 0 asks for no draft."""
        ...

    def expand(
        self, seq: Sequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        """Which of the newest nodes deserve a row in one more draft forward; empty to stop.

        The first forward is asked for with ``leaves`` = [ROOT].
        """
        ...

    def grow(
        self,
        seq: Sequence,
        tree: TokenTree,
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        """bool [F, W]: which candidates become nodes.

        Candidate (f, w) is the w-th best continuation of node ``parents[f]`` and is accepted with
        probability ``estimates[f, w]``, given that its parent is.
        """
        ...

    def see_draft(
        self, seq: Sequence, tree: TokenTree, nodes: NDArray[np.int32], rows: DraftRows
    ) -> None:
        """Look at what a draft forward computed at ``nodes``, before their children are grown."""
        ...

    def see_target(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Look at a verification of ``tree``; ``reply`` has the states of layer ``LAST``."""
        ...

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        """The part of a draft that is worth verifying."""
        ...

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from a verification; called at every step, with an empty tree as well."""
        ...


def reach_of(tree: TokenTree, nodes: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64 [F]: probability that each node is accepted; the root is."""
    return np.array([1.0 if node == ROOT else float(tree.reach[node]) for node in nodes])


def path_to(tree: TokenTree, node: int) -> list[int]:
    """The tokens from the root to a node."""
    path = []
    while node != ROOT:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def accepted_path(tree: TokenTree, verdict: Verdict) -> list[int]:
    """The nodes that a verification accepted, from the root down."""
    path: list[int] = []
    for token in verdict.tokens[:-1]:
        node = tree.child(path[-1] if path else ROOT, token)
        if node is None:
            break
        path.append(node)
    return path
