"""Samples a tree one node at a time, always where the next draw is most likely to be accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from typing import Protocol

from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT, Drawn, Mode
from paradecode.core.tree_builder import Ids, TreeBuilder, Weights, draw_swor, noise_key


class Draws(Protocol):
    """Interface of objects that sample a tree by their own rule, as draft distributions arrive."""

    tree: TreeBuilder

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        """Store the draft model's distribution after a node.

        Args:
            width: the most children of the node.
            ids: ids of the tokens that may follow the node, ascending.
            q: probabilities of these tokens.
        """

    def draw(self) -> list[int]:
        """Draw until distributions are missing; return the nodes that need one, best first.

        A node whose distribution was requested and did not come gets no children.
        """


@dataclass
class GreedyDraws:
    """Draws the tree of DySpec (Xiong et al. 2024), slot by slot.

    A slot is the next draw below some node. Assume that q is the target's distribution. Then the
    acceptance probability of the k-th draw without replacement below a node is known before the
    draw: the node's own probability, times the mass that q has left, times the draw's share of that
    mass.

    The slot with the largest probability is drawn next. The tree therefore depends on earlier draws
    only, and verifiers that test p / q are exact for it.

    The first slot below a node needs the draft model's distribution after the node. Distributions
    are computed together, for all nodes whose first slot is among the best slots that still fit.
    """

    tree: TreeBuilder
    limit: int
    _slots: list[tuple[float, int]] = field(default_factory=lambda: [(-1.0, ROOT)])
    _laws: dict[int, tuple[list[int], Drawn]] = field(default_factory=dict)
    _offered: set[int] = field(default_factory=lambda: {ROOT})

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        most = min(width, self.limit)
        order = draw_swor(ids, q, noise_key(self.tree, sampler, node), most)
        self._laws[node] = order, Drawn(Mode.SWOR, ids, q)

    def draw(self) -> list[int]:
        tree = self.tree
        while self._slots and len(tree) < self.limit:
            less, node = self._slots[0]
            if node not in self._laws and node not in self._offered:
                best = nsmallest(self.limit - len(tree), self._slots)
                missing = [node for _, node in best if node not in self._laws]
                self._offered.update(missing)
                return missing
            heappop(self._slots)
            if node in self._laws:
                self._draw_below(node, -less)
        return []

    def _draw_below(self, node: int, value: float) -> None:
        order, drawn = self._laws[node]
        before = self.tree.children(node)
        if len(before) == len(order):
            return
        left = 1.0 - sum(drawn.of(self.tree.tokens[child]) for child in before)
        (child,) = self.tree.draw(node, order[len(before) : len(before) + 1], drawn)
        share = min(drawn.of(self.tree.tokens[child]) / max(left, 1e-12), 1.0)
        self._push(child, value * share)
        self._push(node, value * (1.0 - share))

    def _push(self, node: int, value: float) -> None:
        """Add a slot with its value. Values fall from draw to draw; ties go to the oldest node."""
        if value > 0.0:
            heappush(self._slots, (-value, node))
