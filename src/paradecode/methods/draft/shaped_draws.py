"""Drawing a tree of a shape that was chosen beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paradecode.core.drawing import Ids, Weights, draw
from paradecode.core.drawn import Mode
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT
from paradecode.core.tree_builder import TreeBuilder
from paradecode.methods.draft.budgets.shapes import Path


@dataclass
class ShapedDraws:
    """Draws as many children of each node as its place in the shape has."""

    tree: TreeBuilder
    shape: Mapping[Path, int]
    _ranks: dict[int, Path] = field(default_factory=lambda: {ROOT: ()})
    _wanted: list[int] = field(default_factory=list)

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        ranks = self._ranks[node]
        count = min(width, self.shape.get(ranks, 0))
        for rank, child in enumerate(draw(self.tree, sampler, node, Mode.SWOR, ids, q, count)):
            self._ranks[child] = (*ranks, rank)
            if self._ranks[child] in self.shape:
                self._wanted.append(child)

    def draw(self) -> list[int]:
        wanted, self._wanted = self._wanted, []
        return wanted
