"""Make a draft tree from a head's logits; ``csrc/head_tree.cpp`` does the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.core.head import HeadDraft
from paradecode.core.logits import kept
from paradecode.core.network import Array
from paradecode.core.noise import gumbel
from paradecode.core.tree import EMPTY, ROOT, TokenTree

POOL = 64
"""Number of best tokens of a row that are considered when noise reorders them. A higher number
costs more time and can find more tokens."""


class GrowingTree:
    """A draft tree that grows level by level; its tokens are ids of the target."""

    def __init__(self, draft: HeadDraft, to_target: NDArray[np.int32] | None) -> None:
        self.draft, self._to_target = draft, to_target
        self.end = draft.start + len(draft.tokens)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._chances: list[float] = []
        self._reach: list[float] = []

    def tree(self) -> TokenTree:
        if not self.tokens:
            return EMPTY
        chances = np.array(self._chances, np.float32)
        tree = TokenTree(np.array(self.tokens), np.array(self.parents), chances)
        return tree.best(self.draft.count)

    def token(self, node: int) -> int:
        """Return the token of a node; for ROOT the last known token."""
        return int(self.draft.tokens[-1]) if node == ROOT else self.tokens[node]

    def above(self, node: int) -> set[int]:
        """Return the set of the node and its ancestors."""
        path = set()
        while node != ROOT:
            path.add(node)
            node = self.parents[node]
        return path

    def extend(self, beam: Sequence[int], logits: Array, level: int) -> list[int]:
        """Add the likeliest children of each node in ``beam``; return the nodes to expand next.

        The returned nodes are sorted, the likeliest first.
        """
        first = len(self.tokens)
        for node, row in zip(beam, logits):
            for token, chance in zip(*self._ranked(row, level)):
                self._add(node, token, chance)
        if level + 1 >= self.draft.depth:
            return []
        bar = self.draft.least
        if len(self._reach) > self.draft.count:  # A child must be among the best to be kept.
            bar = max(bar, sorted(self._reach)[-self.draft.count])
        fresh = sorted(range(first, len(self.tokens)), key=lambda n: -self._reach[n])
        return [node for node in fresh if self._reach[node] > bar][: self.draft.width]

    def cross(self, levels: Sequence[Array]) -> None:
        """Add the likeliest paths through independent guesses for each level, best first."""
        ranked = [self._ranked(row, level) for level, row in enumerate(levels[: self.draft.depth])]
        # (reach, parent, level, rank) of the best nodes that may be added next.
        open_: list[tuple[float, int, int, int]] = [(ranked[0][1][0], ROOT, 0, 0)]
        while open_ and len(self.tokens) < self.draft.count:
            best = max(open_, key=lambda each: each[0])
            open_.remove(best)
            reach, parent, level, rank = best
            tokens, chances = ranked[level]
            if reach <= self.draft.least:
                return
            node = self._add(parent, tokens[rank], chances[rank])
            if rank + 1 < len(tokens):
                above = 1.0 if parent == ROOT else self._reach[parent]
                open_.append((above * chances[rank + 1], parent, level, rank + 1))
            if level + 1 < len(ranked):
                open_.append((reach * ranked[level + 1][1][0], node, level + 1, 0))

    def _add(self, parent: int, token: int, chance: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self._chances.append(chance)
        self._reach.append(chance if parent == ROOT else chance * self._reach[parent])
        return len(self.tokens) - 1

    def _ranked(self, row: Array, level: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens, as ids of the target, and their probabilities."""
        width, scores = self.draft.width, row.astype(np.float64)
        noisy = self.draft.warp.temperature > 0 and len(self.draft.keys) > level
        pool = min(POOL if noisy else width, len(scores))
        ids: NDArray[np.integer] = np.argpartition(-scores, pool - 1)[:pool]
        top = scores.max()
        scores = scores[ids] - top - np.log(np.exp(scores - top).sum())
        if self._to_target is not None:
            ids = self._to_target[ids]
        if noisy:
            places, scaled = kept(scores, self.draft.warp)
            ids, scores = ids[places], scaled + gumbel(self.draft.keys[level], ids[places])
            scores = scores - scores.max()
            scores -= np.log(np.exp(scores).sum())
        order = np.lexsort((ids, -scores))[:width]
        return ids[order].tolist(), np.exp(scores[order]).tolist()
