"""Budgets: how many draft tokens are worth verifying now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree


class Budget(Protocol):
    """Cuts drafts. One object a request, so it may learn from the request's verifications."""

    def limit(self, seq: Sequence) -> int:
        """The most nodes a draft may have at this step; 0 asks for no draft."""
        ...

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        """The part of a draft that is worth verifying."""
        ...

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from a verification."""
        ...


@dataclass
class Fixed:
    """Always up to ``count`` nodes, the most promising first."""

    count: int

    def limit(self, seq: Sequence) -> int:
        return self.count

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        return tree.best(self.count)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        pass


@dataclass
class CostCurve:
    """As many nodes as pay on this machine: the K that maximises tokens per second.

    The value of K nodes is (neighbours + 1 + expected accepted) / t(1 + K): the neighbours' tokens
    are in the numerator because a longer step delays them too. Expected acceptance is the sum of
    the nodes' reach, corrected by how past predictions turned out. K = 0 is a choice like any
    other, so a bad drafter costs next to nothing; every ``patience`` refusals one node is tried all
    the same, or a drafter that has become good would never be noticed.

    Without a measured curve every node is verified, as with :class:`Fixed`.
    """

    count: int
    patience: int = 16
    memory: float = 0.95
    _predicted: float = 4.0
    _accepted: float = 4.0
    _refused: int = 0

    def limit(self, seq: Sequence) -> int:
        return self.count

    def cut(self, seq: Sequence, tree: TokenTree) -> TokenTree:
        tree = tree.best(self.count)
        base = seq.step_seconds(1)
        if len(tree) == 0 or base is None:
            return tree
        reach = np.sort(tree.reach)[::-1] * min(1.0, self._accepted / self._predicted)
        expected = np.concatenate([[0.0], np.cumsum(reach)]) + 1.0 + seq.neighbours
        seconds = [seq.step_seconds(1 + nodes) or base for nodes in range(len(tree) + 1)]
        best = int(np.argmax(expected / np.array(seconds)))
        self._refused = 0 if best else self._refused + 1
        if self._refused >= self.patience:
            self._refused, best = 0, 1
        return tree.best(best)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        if len(tree):
            self._predicted = self.memory * self._predicted + float(tree.reach.sum())
            self._accepted = self.memory * self._accepted + len(verdict.tokens) - 1


BUDGETS: dict[str, type[Fixed] | type[CostCurve]] = {"auto": CostCurve, "fixed": Fixed}
