"""Drawing a tree level by level, with a fixed number of paths that go on: stochastic beams."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np

from paradecode.core.drawing import Ids, Weights, draw_swor, noise_key
from paradecode.core.drawn import Drawn, Mode
from paradecode.core.noise import mix, uniform
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT
from paradecode.core.tree_builder import TreeBuilder


@dataclass
class BeamDraws:
    """The beams of RSD-S (Jeon et al. 2024): texts drawn from q without replacement.

    Stochastic beam search (Kool et al. 2019, arXiv 1903.06059) as a race: a text arrives at a time
    that is exponential with its probability for rate, and the first ``width`` of each length go on.
    A text arrives with the first of those that continue it, and the k-th child of a node follows
    the one before at an exponential time, whose rate is the mass of the children that are left.
    (The negative logarithm of a time is the paper's perturbed log-probability.) When a child
    arrives says nothing about which token it is. For example, of 0.6 a and 0.4 b: a, if drawn
    first, arrives with the root, at 0, and b at an exponential time of rate 0.4. So whether
    it is drawn does not depend on what is drawn, and verifiers that test p / q are exact for the
    tree.
    """

    tree: TreeBuilder
    limit: int
    width: int
    _times: dict[int, float] = field(default_factory=lambda: {ROOT: 0.0})
    _masses: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})
    _arriving: list[tuple[float, int, int, int, Drawn]] = field(default_factory=list)

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        key, drawn = noise_key(self.tree, sampler, node), Drawn(Mode.SWOR, ids, q)
        order = draw_swor(ids, q, key, min(width, self.width))
        left = 1.0 - np.cumsum([0.0, *map(drawn.of, order)])[1 : len(order)]
        waits = -np.log(uniform(mix(key), np.arange(len(left))))
        times = np.cumsum([0.0, *(waits / np.maximum(self._masses[node] * left, 1e-300))])
        for rank, (time, token) in enumerate(zip(times + self._times[node], order)):
            self._arriving.append((float(time), node, rank, token, drawn))

    def draw(self) -> list[int]:
        """Draw the next level; its nodes, whose rows come next, in the order of their arrival."""
        best = nsmallest(min(self.width, self.limit - len(self.tree)), self._arriving)
        self._arriving = []
        level = []
        for time, node, _, token, drawn in best:
            (child,) = self.tree.draw(node, [token], drawn)
            self._times[child] = time
            self._masses[child] = self._masses[node] * drawn.of(token)
            level.append(child)
        return level if len(self.tree) < self.limit else []
