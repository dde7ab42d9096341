"""Shapes of trees: the number of children of each node by its ranks; and budgets that fix the
shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.base import Budget, Estimates, Marks, Nodes, Seconds

Path = tuple[int, ...]
"""Ranks from the root down: (0, 1) is the second child of the first child."""
Shape = Mapping[Path, int]
"""Path -> number of children; paths that are not named are leaves."""

WIDTH = 8
"""The most children of a node."""
MEMORY = 0.98


class Ranks:
    """Acceptance by rank: how often the child of each rank was accepted below an accepted node."""

    def __init__(self) -> None:
        self._tried = np.full(WIDTH, 2.0)
        self._accepted = 2.0 * 0.6 * 0.35 ** np.arange(WIDTH)

    @property
    def rates(self) -> NDArray[np.float64]:
        """float64 [WIDTH]: descending, with a sum of at most 1."""
        rates = np.minimum.accumulate(self._accepted / self._tried)
        return rates / max(1.0, float(rates.sum()))

    def update(self, tree: TokenTree, path: list[int]) -> None:
        for node, taken in zip([ROOT, *path], [*path, None], strict=True):
            children = tree.children(node)[:WIDTH]
            if children:
                self._tried[: len(children)] = MEMORY * self._tried[: len(children)] + 1
                self._accepted[: len(children)] *= MEMORY
                if taken in children:
                    self._accepted[children.index(taken)] += 1


def paths_of(tree: TokenTree) -> dict[int, Path]:
    """The rank path of each node, and of the root."""
    paths: dict[int, Path] = {ROOT: ()}
    for parent in range(ROOT, len(tree)):
        for rank, child in enumerate(tree.children(parent)):
            paths.setdefault(child, (*paths[parent], rank))
    return paths


@dataclass
class Shaped(Budget):
    """Grows and cuts trees to a shape that :meth:`choose` gives for each step."""

    weighs = True
    _ranks: Ranks = field(default_factory=Ranks, repr=False)
    _shape: Shape = field(default_factory=dict, repr=False)
    _draft: float = 0.0

    def choose(self, seq: TokenSequence) -> Shape:
        """The shape for the next draft, of at most ``count`` nodes."""
        raise NotImplementedError

    def limit(self, seq: TokenSequence) -> int:
        self._ranks = seq.shared("ranks", Ranks)
        self._shape = self.choose(seq)
        return sum(self._shape.values())

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        self._draft = seconds(1)
        paths = paths_of(tree)
        return leaves[np.array([paths[leaf] in self._shape for leaf in leaves.tolist()], bool)]

    def grow(
        self, seq: TokenSequence, tree: TokenTree, parents: Nodes, estimates: Estimates
    ) -> Marks:
        paths = paths_of(tree)
        wanted = np.array([self._shape.get(paths[parent], 0) for parent in parents.tolist()])
        inside: Marks = np.arange(estimates.shape[1])[None, :] < wanted[:, None]
        return inside

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        if not tree.sampled:
            paths = paths_of(tree)
            places = [paths[node] for node in range(len(tree))]
            inside = [path[-1] < self._shape.get(path[:-1], 0) for path in places]
            tree = tree.select(np.array(inside, bool))
        return super().cut(seq, tree)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        if len(tree):
            self._ranks.update(tree, tree.follow(verdict.tokens[:-1]))


BRANCHES, LONGEST = 4, 8
"""The most branches, and the most levels of the trunk and of a branch."""


@dataclass(frozen=True)
class Action:
    """A trunk of ``trunk`` tokens, then ``branches`` branches of ``length`` tokens each."""

    branches: int
    trunk: int
    length: int

    @property
    def nodes(self) -> int:
        return self.trunk + self.branches * self.length

    def shape(self) -> Shape:
        shape: dict[Path, int] = {(0,) * level: 1 for level in range(self.trunk)}
        fork = (0,) * self.trunk
        if self.length:
            shape[fork] = self.branches
        for branch in range(self.branches):
            for level in range(self.length - 1):
                shape[fork + (branch,) + (0,) * level] = 1
        return shape

    def tokens(self, first: float, branch: float) -> float:
        """Expected accepted tokens.

        Args:
            first: chance that a first child is accepted.
            branch: chance that one of the branches is.
        """
        powers = first ** np.arange(max(self.trunk, self.length) + 1)
        fork = powers[self.trunk] * branch * powers[: self.length].sum()
        return float(powers[1 : self.trunk + 1].sum() + fork)


def actions(count: int) -> list[Action]:
    """Every distinct action of at most ``count`` nodes."""
    chains = [Action(1, 0, length) for length in range(1, min(count, 2 * LONGEST) + 1)]
    trees = [
        Action(branches, trunk, length)
        for branches in range(2, BRANCHES + 1)
        for trunk in range(LONGEST + 1)
        for length in range(1, LONGEST + 1)
    ]
    return chains + [action for action in trees if action.nodes <= count]
