"""Top-down verification: the draft tokens of each node are tested one after another."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paradecode.core.tree import Mode, TokenTree
from paradecode.methods.draft.verifiers.rule import (
    NOTHING,
    Chance,
    Row,
    TopDown,
    proposal,
    residual,
    sampling,
    without,
)


def one_by_one(
    p: Row, node: int, tree: TokenTree, chance: Chance, most: int | None = None
) -> tuple[int | None, int]:
    """Test a node's first ``most`` children (all by default) in drawing order.

    After a rejection, p becomes the residual norm((p - q)+). If children were drawn without
    replacement, q is restricted to the tokens that were not drawn yet. Return the accepted child
    and its token, or None and a token drawn from the last residual.
    """
    drawn = tree.drawn.get(node)
    if drawn is None:
        return _one_hot(p, node, tree, chance)
    q = proposal(drawn, node, tree, len(p))
    for child in tree.children(node)[:most]:
        token = int(tree.tokens[child])
        if chance.accept(p[token], q[token]):
            return child, token
        p = residual(p, q)
        if drawn.mode is Mode.SWOR:
            q = without(q, token)
    return None, chance.draw(p)


def _one_hot(p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
    """Test children that were not sampled: accept each with the remaining p of its token.

    This is exact for any tree.
    """
    for child in tree.children(node):
        token = int(tree.tokens[child])
        if chance.accept(p[token]):
            return child, token
        rest = without(p, token)
        p = rest if rest.any() else p
    return None, chance.draw(p)


@sampling(
    "rejection",
    paper="Fast Inference from Transformers via Speculative Decoding",
    arxiv="2211.17192",
)
class Rejection(TopDown):
    """Test one draft token at each depth with p / q (also Chen et al. 2023, arXiv 2302.01318).

    Accept the token with probability min(1, p / q), or else emit a token of norm((p - q)+). Only
    the first of several sampled siblings is tested. Children that were not sampled are all tested,
    with a one-hot q.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        return one_by_one(p, node, tree, chance, 1)


@sampling("specinfer", paper="SpecInfer", arxiv="2305.09781")
class SpecInfer(TopDown):
    """Test siblings one after another, each against what the earlier ones left of p.

    This is the multi-path rule of Miao et al. 2023, for children drawn with replacement. For
    children drawn without replacement it is the same as ``rsd``. Children that were not sampled are
    tested with a one-hot q.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.IID, Mode.SWOR)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        return one_by_one(p, node, tree, chance)


@sampling("rsd", paper="Recursive Speculative Decoding", arxiv="2402.14160")
class Rsd(SpecInfer):
    """Recursive rejection sampling: ``specinfer`` for siblings drawn without replacement."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)


@sampling("naive-tree", paper="Dynamic Delayed Tree Expansion", arxiv="2602.16994")
class NaiveTree(Rejection):
    """Test the first sibling with p / q; take another one if the residual happens to draw it."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        child, token = super().level(p, node, tree, chance)
        return (tree.child(node, token) if child is None else child), token


@sampling("nss", paper="SpecInfer (naive sampling)", arxiv="2305.09781")
class NaiveSampling(TopDown):
    """Draw from p, and go on if the token was drafted. Needs no q, and is exact for any tree."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        token = chance.draw(p)
        return tree.child(node, token), token


# SpecTr's sequential selection among k drafts.

HALVINGS = 24
"""Number of halvings of the interval that contains rho.

The result may be a little larger than the best rho, which is exact as well.
"""


@sampling("spectr", paper="SpecTr", arxiv="2310.15141")
class SpecTr(TopDown):
    """Test k draws with replacement by approximate optimal transport (Sun et al. 2023).

    K-SEQ: accept a draw with probability min(1, p / (rho q)), where rho is the smallest value that
    preserves the output's distribution. With beta = sum min(p / rho, q), a draw is accepted with
    probability beta, and one of k draws with 1 - (1 - beta)^k. The residual is p without the
    accepted mass.

    Children that were not drawn with replacement are verified as ``rsd`` does.
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
