"""Sampled drafts: draw children of tree nodes from a distribution, with counter-based noise.

tree, sampler = TreeBuilder(), seq.sampler
for node in draw(tree, sampler, ROOT, Mode.SWOR, *distribution(reply.logits, row, sampler.warp), 2):
    ...  # A forward of the draft model for the node's own row, then draw(tree, sampler, node, ...)

A draw is never taken back: a method decides where, from what and how often to draw before it draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.drawn import Drawn, Mode
from paradecode.core.logits import Logits, Warp
from paradecode.core.noise import MASK64, Purpose, gumbel, mix, uniform
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT
from paradecode.core.tree_builder import TreeBuilder

Ids = NDArray[np.int32]
Weights = NDArray[np.float64]


def distribution(logits: Logits, row: int, warp: Warp) -> tuple[Ids, Weights]:
    """The tokens that can be sampled from one row of ``logits``, ascending, and their q."""
    q = logits.select([row]).probabilities(warp)[0]
    ids = np.flatnonzero(q).astype(np.int32)
    return ids, q[ids]


def noise_key(tree: TreeBuilder, sampler: Sampler, node: int) -> int:
    """Noise key for the children of ``node``, made from its parent's key and its rank there."""
    if node == ROOT:
        return sampler.noise_key(0, Purpose.DRAFT)
    parent = tree.parents[node]
    rank = tree.children(parent).index(node)
    return mix(noise_key(tree, sampler, parent) ^ mix((rank + 1) & MASK64))


def draw_iid(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """``count`` independent draws from q, the weights of ``ids``, after the first ``skip``."""
    edges = np.cumsum(q)
    points = uniform(base, np.arange(skip, skip + count)) * edges[-1]
    return ids[np.searchsorted(edges, points, side="right")].tolist()


def draw_swor(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """At most ``count`` draws from q without replacement, after the first ``skip`` draws.

    Gumbel top-k: the tokens with the largest log q + noise, in descending order. There are fewer
    than ``count`` if q has fewer tokens.
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
    """Draw up to ``count`` children of ``node``; returns the new nodes.

    A second call for the same node continues its sequence of draws.

    Args:
        sampler: the sequence's sampler, whose seed and position give the noise.
        mode: SWOR, or IID, where equal draws become separate nodes.
    """
    one_by_one = draw_iid if mode is Mode.IID else draw_swor
    skip = len(tree.children(node))
    tokens = one_by_one(ids, q, noise_key(tree, sampler, node), count, skip)
    return tree.draw(node, tokens, Drawn(mode, ids, q))


def draw_pooled(
    tree: TreeBuilder, sampler: Sampler, node: int, ids: Ids, q: Weights, count: int
) -> dict[int, int]:
    """Draw ``count`` children of ``node`` with replacement, all at once; equal ones share a node.

    Returns:
        New node -> how often it was drawn. For k children under each draw, draw k times as many
        under the node.
    """
    order = draw_iid(ids, q, noise_key(tree, sampler, node), count)
    distinct = list(dict.fromkeys(order))
    nodes = tree.draw(node, distinct, Drawn(Mode.IID, ids, q, tuple(order)))
    return {child: order.count(token) for child, token in zip(nodes, distinct, strict=True)}
