"""Budgets: how many draft tokens are worth verifying now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree


class Budget(Protocol):
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
