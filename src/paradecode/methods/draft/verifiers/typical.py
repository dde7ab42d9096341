"""Typical acceptance (Cai et al. 2024, Medusa, arXiv 2401.10774): lossy."""

from __future__ import annotations

import numpy as np

from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.verifiers.rule import Accepted, Chance, Row, Rows

FLOOR = 0.09
"""A token at least this likely is always accepted."""
ENTROPY_FACTOR = 0.3
"""So is one likelier than this times exp(-entropy)."""


def typical(p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
    """Accept what the target finds plausible, given its own doubt; the longest path wins.

    Of equally long paths the likelier one wins. The token after the path is drawn from p.
    """
    best: tuple[int, float, int] = (0, 0.0, ROOT)
    alive: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    for node, (parent, token) in enumerate(
        zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    ):
        if parent in alive and p(parent)[token] > _threshold(p(parent)):
            depth, log_p = alive[parent]
            alive[node] = (depth + 1, log_p + float(np.log(p(parent)[token])))
            best = max(best, (*alive[node], node), key=lambda entry: entry[:2])
    path: list[int] = []
    node = best[2]
    while node != ROOT:
        path.insert(0, node)
        node = int(tree.parents[node])
    return path, chance.draw(p(best[2]))


def _threshold(p: Row) -> float:
    entropy = -float((p * np.log(p + 1e-5)).sum())
    return min(FLOOR, ENTROPY_FACTOR * float(np.exp(-entropy)))
