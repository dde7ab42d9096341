"""SpecTr's sequential selection among k drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paradecode.core.drawn import Mode
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers.recursive import one_by_one
from paradecode.methods.draft.verifiers.rule import (
    NOTHING,
    Chance,
    Row,
    TopDown,
    proposal,
    sampling,
)  # fmt: skip

HALVINGS = 24
"""How often the interval that holds rho is halved. A rho that is a little too large is exact,
too."""


@sampling("spectr", paper="SpecTr", arxiv="2310.15141")
@dataclass
class SpecTr(TopDown):
    """Test k draws with replacement by approximate optimal transport (Sun et al. 2023).

    K-SEQ: accept a draw with min(1, p / (rho q)), rho the smallest that keeps the law. With
    beta = sum min(p / rho, q) a draw is accepted, so one of k is with 1 - (1 - beta)^k; the
    residual is what p has left when those accepted are taken out. Children that were not drawn
    with replacement are verified as ``rsd`` does.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.IID,)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        if tree.mode(node) is not Mode.IID:
            return one_by_one(p, node, tree, chance)
        children = tree.children(node)
        k = len(children)
        q = proposal(tree.drawn[node], node, tree, len(p))
        low, rho = 1.0, float(k)
        if k > 1:
            for _ in range(HALVINGS):
                middle = (low + rho) / 2
                beta = np.minimum(p / middle, q).sum()
                if 1 - (1 - beta) ** k > middle * beta:
                    low = middle
                else:
                    rho = middle
        for child in children:
            token = int(tree.tokens[child])
            if chance.accept(p[token], rho * q[token]):
                return child, token
        taken = np.minimum(p / rho, q)
        beta = taken.sum()
        if beta > 0.0:
            rest = np.maximum(p - taken * ((1 - (1 - beta) ** k) / beta), 0.0)
            p = rest if rest.sum() > NOTHING else p
        return None, chance.draw(p)
