"""Builds token trees: node by node, or out of several trees."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paradecode.core.drawn import Drawn
from paradecode.core.errors import DecoderError
from paradecode.core.tree import EMPTY, ROOT, TokenTree

_ONE_WAY = "token tree: the children of one node must all come about in one way, from one q"


class TreeBuilder:
    """Builds a tree; nodes are numbered in the order in which they are added.

    Attributes:
        tokens, parents, estimates, drawn: see :class:`TokenTree`.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.estimates: list[float] = []
        self.drawn: dict[int, Drawn] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._is_chain = True

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The first child of ``node`` (or of ``ROOT``) that carries ``token``, if there is one."""
        return self._children.get((node, token))

    def children(self, node: int) -> list[int]:
        """Children of ``node`` (or of ``ROOT``), the oldest first."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def add(self, parent: int, token: int, estimate: float = 1.0) -> int:
        """The node of ``token`` under ``parent``; it is added if there is none yet.

        Raises:
            DecoderError: if children of ``parent`` were drawn.
        """
        if parent in self.drawn:
            raise DecoderError(_ONE_WAY)
        known = self._children.get((parent, token))
        return self._append(parent, token, estimate) if known is None else known

    def draw(self, parent: int, tokens: Iterable[int], drawn: Drawn) -> list[int]:
        """Add drawn children, each as a node of its own; returns the new nodes.

        Their estimate is q; a drafter may replace it by a better one.

        Raises:
            DecoderError: if ``parent`` has children that were chosen or drawn otherwise.
        """
        before = self.drawn.get(parent)
        if self.children(parent) if before is None else not before.goes_on_as(drawn):
            raise DecoderError(_ONE_WAY)
        nodes = [self._append(parent, token, drawn.of(token)) for token in tokens]
        if nodes:
            self.drawn.setdefault(parent, drawn)
        return nodes

    def tree(self) -> TokenTree:
        """The tree of all nodes that were added."""
        if not self.tokens:
            return EMPTY
        estimates = np.array(self.estimates, np.float32)
        if self._is_chain and not self.drawn:
            return TokenTree.chain(np.array(self.tokens, np.int32), estimates)
        tokens, parents = np.array(self.tokens, np.int32), np.array(self.parents, np.int32)
        return TokenTree(tokens, parents, estimates, dict(self.drawn))

    def _append(self, parent: int, token: int, estimate: float) -> int:
        node = len(self.tokens)
        self._is_chain = self._is_chain and parent == node - 1
        self._children.setdefault((parent, token), node)
        self.tokens.append(token)
        self.parents.append(parent)
        self.estimates.append(estimate)
        return node


def merge(trees: Iterable[TokenTree]) -> TokenTree:
    """One tree of several: nodes with equal tokens under equal parents become one.

    A node that several drafters propose gets the estimate 1 - (1 - a)(1 - b), as if their errors
    were independent. That is a little too high, so if the children of one parent add up to more
    than 1, they are scaled down to 1. The budget corrects the rest, as it compares estimates with
    results.

    If only one tree is not empty, it is returned unchanged. Otherwise every node is DET, because
    siblings of different origins have no common q.
    """
    trees = [tree for tree in trees if len(tree)]
    if len(trees) < 2:
        return trees[0] if trees else EMPTY
    merged = TreeBuilder()
    for tree in trees:
        place = {ROOT: ROOT}
        proposed: set[int] = set()
        rows = zip(
            tree.parents.tolist(), tree.tokens.tolist(), tree.estimates.tolist(), strict=True
        )
        for node, (parent, token, estimate) in enumerate(rows):
            size = len(merged)
            known = place[node] = merged.add(place[parent], token, estimate)
            # A node that one drafter proposes twice counts once.
            if known < size and known not in proposed:
                doubt = (1.0 - merged.estimates[known]) * (1.0 - estimate)
                merged.estimates[known] = 1.0 - doubt
            proposed.add(known)
    parents = np.array(merged.parents, np.int32)
    chances = np.array(merged.estimates, np.float32)
    family = np.bincount(parents + 1, chances, len(merged) + 1)[parents + 1]
    chances = (chances / np.maximum(family, 1.0)).astype(np.float32)
    return TokenTree(np.array(merged.tokens, np.int32), parents, chances)
