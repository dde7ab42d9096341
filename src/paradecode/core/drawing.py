"""Sampled drafts: draw children of tree nodes from a distribution, with counter-based noise.

growth = Growth(seq.sampler)
for node in growth.swor(ROOT, *distribution(reply.logits, row, seq.sampler.warp), 2):
    ...  # A forward of the draft model for the node's own row, then growth.swor(node, ...)
tree = growth.tree()
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError
from paradecode.core.logits import Logits, Warp
from paradecode.core.noise import MASK64, Purpose, gumbel, mix, uniform
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree

Ids = NDArray[np.int32]
Weights = NDArray[np.float64]


def distribution(logits: Logits, row: int, warp: Warp) -> tuple[Ids, Weights]:
    """The tokens that one row of ``logits`` can give under ``warp``, ascending, and their q."""
    q = logits.select([row]).probabilities(warp)[0]
    ids = np.flatnonzero(q).astype(np.int32)
    return ids, q[ids]


def root_key(sampler: Sampler) -> int:
    """Noise key of the children of the last committed token."""
    return sampler.noise_key(0, Purpose.DRAFT)


def child_key(base: int, rank: int) -> int:
    """Noise key of the children of a node: its parent's key, and its rank among its siblings."""
    return mix(base ^ mix((rank + 1) & MASK64))


def draw_iid(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """``count`` independent draws from q (weights of ``ids``), after the first ``skip`` ones."""
    edges = np.cumsum(q)
    points = uniform(base, np.arange(skip, skip + count)) * edges[-1]
    return ids[np.searchsorted(edges, points, side="right")].tolist()


def draw_swor(ids: Ids, q: Weights, base: int, count: int, skip: int = 0) -> list[int]:
    """At most ``count`` distinct draws, each from what the earlier ones have left of q.

    Gumbel top-k: the largest log q + noise, in descending order, after the first ``skip`` ones.
    Fewer than ``count`` when q has fewer tokens.
    """
    possible = np.flatnonzero(q > 0)
    scores = np.log(q[possible]) + gumbel(base, ids[possible])
    wanted = min(skip + count, len(possible))
    best = np.argpartition(-scores, max(wanted - 1, 0))[:wanted]
    best = best[np.argsort(-scores[best], kind="stable")]
    return ids[possible[best[skip:]]].tolist()


class Growth:
    """A sampled tree in the making: nodes are numbered in the order they are drawn.

    What is drawn stays: decide before drawing where, from what and how often, and never look at a
    draw to take it back. A node may be drawn from again; its draws then go on where they ended.

    Args:
        sampler: of the sequence that is drafted for; its seed and position give the noise.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.keys: dict[int, int] = {ROOT: root_key(sampler)}
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.estimates: list[float] = []
        self.drawn: dict[int, Drawn] = {}
        self._draws: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def iid(self, parent: int, ids: Ids, q: Weights, count: int) -> list[int]:
        """Draw ``count`` children of ``parent`` with replacement; returns the new nodes.

        Equal children are nodes of their own, each to be grown on its own.
        """
        skip = self._draws.get(parent, 0)
        tokens = draw_iid(ids, q, self.keys[parent], count, skip)
        return self._grow(parent, tokens, Drawn(Mode.IID, ids, q))

    def pooled(self, parent: int, ids: Ids, q: Weights, count: int) -> dict[int, int]:
        """Draw ``count`` children of ``parent`` with replacement; equal ones share a node.

        Returns:
            New node -> how often it was drawn. To grow k children under each draw, draw k times
            that many under the node.
        """
        order = draw_iid(ids, q, self.keys[parent], count)
        distinct = list(dict.fromkeys(order))
        nodes = self._grow(parent, distinct, Drawn(Mode.IID, ids, q, tuple(order)))
        return {node: order.count(token) for node, token in zip(nodes, distinct, strict=True)}

    def swor(self, parent: int, ids: Ids, q: Weights, count: int) -> list[int]:
        """Draw up to ``count`` distinct children of ``parent``; returns the new nodes."""
        skip = self._draws.get(parent, 0)
        tokens = draw_swor(ids, q, self.keys[parent], count, skip)
        return self._grow(parent, tokens, Drawn(Mode.SWOR, ids, q))

    def det(self, parent: int, tokens: Sequence[int]) -> list[int]:
        """Add children that a rule has chosen; returns the new nodes."""
        return self._grow(parent, tokens, None)

    def tree(self) -> TokenTree:
        return TokenTree(
            np.array(self.tokens, np.int32),
            np.array(self.parents, np.int32),
            np.array(self.estimates, np.float32),
            dict(self.drawn),
        )

    def _grow(self, parent: int, tokens: Sequence[int], drawn: Drawn | None) -> list[int]:
        """Add nodes; their q is their estimate, which a drafter that knows better may replace."""
        rank = self._draws.get(parent, 0)
        known = self.drawn.get(parent)
        if rank and not _same(known, drawn):
            raise DecoderError("children of one node are drawn in one way, from one q")
        if drawn is not None and len(tokens):
            self.drawn[parent] = known or drawn
        first = len(self.tokens)
        for token in tokens:
            self.keys[len(self.tokens)] = child_key(self.keys[parent], rank)
            self.tokens.append(token)
            self.parents.append(parent)
            self.estimates.append(1.0 if drawn is None else drawn.of(token))
            rank += 1
        self._draws[parent] = rank
        return list(range(first, len(self.tokens)))


def _same(one: Drawn | None, other: Drawn | None) -> bool:
    """Whether draws may go on; pooled ones are made all at once."""
    if one is None or other is None:
        return one is other
    return (
        one.mode is other.mode
        and one.order is other.order is None
        and np.array_equal(one.ids, other.ids)
        and np.array_equal(one.probabilities, other.probabilities)
    )


class Beam:
    """Stochastic beam search (Kool et al. 2019, arXiv 1903.06059): whole texts without replacement.

    Each level keeps the ``width`` candidates with the largest perturbed log-probability. Siblings
    are drawn without replacement, and unlikely branches end early (RSD-S, arXiv 2402.14160). Which
    branches survive depends on the values of the perturbed scores, never on which token is next.

    Args:
        growth: the tree that grows.
        width: nodes a level.
    """

    def __init__(self, growth: Growth, width: int) -> None:
        self.growth, self.width = growth, width
        self.entries: list[tuple[int, float, float]] = [(ROOT, 0.0, 0.0)]

    @property
    def nodes(self) -> list[int]:
        """The last level, best first; at the start the root."""
        return [node for node, _, _ in self.entries]

    def grow(self, rows: Sequence[tuple[Ids, Weights]]) -> list[int]:
        """Add a level: ``rows`` holds q of each of :attr:`nodes`; returns the new nodes."""
        candidates: list[tuple[float, int, int, float]] = []
        for index, ((parent, logp, score), (ids, q)) in enumerate(
            zip(self.entries, rows, strict=True)
        ):
            with np.errstate(divide="ignore"):
                phi = logp + np.log(q / q.sum())
            scores = _conditioned(phi + gumbel(self.growth.keys[parent], ids), score)
            scores[q <= 0] = -np.inf
            for place in np.argsort(-scores, kind="stable")[: self.width].tolist():
                if scores[place] > -np.inf:
                    candidates.append(
                        (float(scores[place]), index, int(ids[place]), float(phi[place]))
                    )
        candidates.sort(key=lambda entry: -entry[0])
        parents, level = self.entries, []
        for score, index, token, logp in candidates[: self.width]:
            drawn = Drawn(Mode.SWOR, *rows[index])
            level += [
                (node, logp, score) for node in self.growth._grow(parents[index][0], [token], drawn)
            ]
        self.entries = level
        return self.nodes


def _conditioned(scores: NDArray[np.float64], top: float) -> NDArray[np.float64]:
    """Gumbel scores given that the largest of them is ``top``; their order does not change."""
    best = scores.max()
    with np.errstate(divide="ignore", invalid="ignore"):
        v = top - scores + np.log1p(-np.exp(scores - best))
        moved = top - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v)))
    moved[scores == best] = top
    return moved
