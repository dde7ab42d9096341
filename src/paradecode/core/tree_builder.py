"""Builds token trees: node by node, from several trees, or by draws from a distribution."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError
from paradecode.core.logits import Logits, Warp
from paradecode.core.noise import MASK64, Purpose, gumbel, mix, uniform
from paradecode.core.sampling import Sampler
from paradecode.core.tree import EMPTY, ROOT, Drawn, Mode, TokenTree

_ONE_WAY = "token tree: the children of one node must all come about in one way, from one q"


class TreeBuilder:
    """Builds a tree node by node; nodes are numbered in the order in which they are added.

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
        """Return the first child of ``node`` (or of ``ROOT``) with the token ``token``, if any."""
        return self._children.get((node, token))

    def children(self, node: int) -> list[int]:
        """Return the children of ``node`` (or of ``ROOT``), the oldest first."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def add(self, parent: int, token: int, estimate: float = 1.0) -> int:
        """Return the node of ``token`` under ``parent``; add the node if there is none yet.

        Raises:
            DecoderError: if children of ``parent`` were sampled.
        """
        if parent in self.drawn:
            raise DecoderError(_ONE_WAY)
        known = self._children.get((parent, token))
        return self._append(parent, token, estimate) if known is None else known

    def draw(self, parent: int, tokens: Iterable[int], drawn: Drawn) -> list[int]:
        """Add one new node for each drawn token, and return the new nodes.

        The estimate of a node is its probability q; a drafter may replace it by a better estimate.

        Raises:
            DecoderError: if ``parent`` has children that were not sampled, or were sampled from
                another q.
        """
        before = self.drawn.get(parent)
        if self.children(parent) if before is None else not before.goes_on_as(drawn):
            raise DecoderError(_ONE_WAY)
        nodes = [self._append(parent, token, drawn.of(token)) for token in tokens]
        if nodes:
            self.drawn.setdefault(parent, drawn)
        return nodes

    def tree(self) -> TokenTree:
        """Return the tree of all nodes that were added."""
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
    """Merge several trees into one: nodes with equal tokens under equal parents become one node.

    A node that several drafters propose gets the estimate 1 - (1 - a)(1 - b), as if their errors
    were independent. This is a little too high, so children of one parent whose estimates sum to
    more than 1 are scaled down to a sum of 1. The budget corrects the rest, because it compares
    estimates with results.

    If only one tree is not empty, it is returned unchanged. Otherwise every node is DET, because
    siblings from different drafters have no common q.
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


# Sampled drafts draw children of tree nodes from a distribution, with reproducible random numbers:
#
#     tree, sampler, q = TreeBuilder(), seq.sampler, distribution(reply.logits, row, sampler.warp)
#     for node in draw(tree, sampler, ROOT, Mode.SWOR, *q, 2):
#         ...  # A forward of the draft model for the node, then draw(tree, sampler, node, ...)
#
# A draw is never undone: before it draws, a method decides where, from which q and how often.

Ids = NDArray[np.int32]
Weights = NDArray[np.float64]


def distribution(logits: Logits, row: int, warp: Warp) -> tuple[Ids, Weights]:
    """Return the tokens that can be sampled from one row of ``logits``, ascending, and their q."""
    q = logits.select([row]).probabilities(warp)[0]
    ids = np.flatnonzero(q).astype(np.int32)
    return ids, q[ids]


def noise_key(tree: TreeBuilder, sampler: Sampler, node: int) -> int:
    """Return the key of the random numbers that choose the children of ``node``.

    It is made from the key of the parent and the node's index among its siblings.
    """
    if node == ROOT:
        return sampler.noise_key(0, Purpose.DRAFT)
    parent = tree.parents[node]
    rank = tree.children(parent).index(node)
    return mix(noise_key(tree, sampler, parent) ^ mix((rank + 1) & MASK64))


def draw_iid(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """Draw ``count`` tokens from q with replacement, after skipping the first ``skip`` draws.

    ``q`` has one weight for each of ``ids``.
    """
    edges = np.cumsum(q)
    points = uniform(base, np.arange(skip, skip + count)) * edges[-1]
    return ids[np.searchsorted(edges, points, side="right")].tolist()


def draw_swor(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """Draw up to ``count`` tokens from q without replacement, after skipping ``skip`` draws.

    This is Gumbel top-k: the tokens with the largest log q + Gumbel random number, in descending
    order. There are fewer than ``count`` if q has fewer tokens.
    """
    possible = np.flatnonzero(q > 0)
    scores = np.log(q[possible]) + gumbel(base, ids[possible])
    wanted = min(skip + count, len(possible))
    best = np.argpartition(-scores, max(wanted - 1, 0))[:wanted]
    best = best[np.argsort(-scores[best], kind="stable")]
    return ids[possible[best[skip:]]].tolist()


def draw(
    tree: TreeBuilder, sampler: Sampler, node: int, mode: Mode, ids: Ids, q: Weights, count: int
) -> list[int]:
    """Draw up to ``count`` children of ``node``, and return the new nodes.

    A second call for the same node continues its sequence of draws.

    Args:
        sampler: the sequence's sampler, whose seed and position determine the random numbers.
        mode: SWOR, or IID, where equal draws become separate nodes.
    """
    one_by_one = draw_iid if mode is Mode.IID else draw_swor
    skip = len(tree.children(node))
    tokens = one_by_one(ids, q, noise_key(tree, sampler, node), count, skip)
    return tree.draw(node, tokens, Drawn(mode, ids, q))


def draw_pooled(
    tree: TreeBuilder, sampler: Sampler, node: int, ids: Ids, q: Weights, count: int
) -> dict[int, int]:
    """Draw ``count`` children of ``node`` with replacement, all at once; equal draws share a node.

    Returns:
        New node -> how often it was drawn. A caller that wants k children for each draw draws k
            times this many children of the node.
    """
    order = draw_iid(ids, q, noise_key(tree, sampler, node), count)
    distinct = list(dict.fromkeys(order))
    nodes = tree.draw(node, distinct, Drawn(Mode.IID, ids, q, tuple(order)))
    return {child: order.count(token) for child, token in zip(nodes, distinct, strict=True)}
