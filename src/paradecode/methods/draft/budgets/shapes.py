"""Shapes of trees (the number of children of each node), and budgets that fix the shape.

A node is identified by its path: the ranks among siblings from the root to the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.contracts import Budget, Estimates, Marks, Nodes, Seconds
from paradecode.methods.parts import declare

Path = tuple[int, ...]
"""Ranks among siblings from the root: (0, 1) is the second child of the first child."""
Shape = Mapping[Path, int]
"""Number of children of each path; a path that is missing is a leaf."""

WIDTH = 8
"""The most children of a node."""
MEMORY = 0.98


class Ranks:
    """Counts how often the first, second, ... child of an accepted node was accepted."""

    def __init__(self) -> None:
        self._tried = np.full(WIDTH, 2.0)
        self._accepted = 2.0 * 0.6 * 0.35 ** np.arange(WIDTH)

    @property
    def rates(self) -> NDArray[np.float64]:
        """Acceptance rate by sibling rank, float64 [WIDTH], descending, with a sum of at most 1."""
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
    """Return the path of the root and of each node."""
    paths: dict[int, Path] = {ROOT: ()}
    for parent in range(ROOT, len(tree)):
        for rank, child in enumerate(tree.children(parent)):
            paths.setdefault(child, (*paths[parent], rank))
    return paths


@dataclass
class Shaped(Budget):
    """Base class of budgets that grow and cut trees to a shape chosen for each step."""

    weighs = True
    _ranks: Ranks = field(default_factory=Ranks, repr=False)
    _shape: Shape = field(default_factory=dict, repr=False)
    _draft: float = 0.0

    def choose(self, seq: TokenSequence) -> Shape:
        """Return the shape of the next draft, with at most ``count`` nodes."""
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
"""The most branches, and the most levels of the trunk and of each branch."""


@dataclass(frozen=True)
class Action:
    """A tree shape: a trunk of ``trunk`` tokens, then ``branches`` branches of ``length`` each."""

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
        """Return the expected number of accepted tokens.

        Args:
            first: probability that a first child is accepted.
            branch: probability that one of the branches' first tokens is accepted.
        """
        powers = first ** np.arange(max(self.trunk, self.length) + 1)
        fork = powers[self.trunk] * branch * powers[: self.length].sum()
        return float(powers[1 : self.trunk + 1].sum() + fork)


def actions(count: int) -> list[Action]:
    """Return every distinct :class:`Action` of at most ``count`` nodes."""
    chains = [Action(1, 0, length) for length in range(1, min(count, 2 * LONGEST) + 1)]
    trees = [
        Action(branches, trunk, length)
        for branches in range(2, BRANCHES + 1)
        for trunk in range(LONGEST + 1)
        for length in range(1, LONGEST + 1)
    ]
    return chains + [action for action in trees if action.nodes <= count]


# Sequoia: the best tree shape for acceptance rates by sibling rank, by dynamic programming.

DEEPEST = 8


class Forest:
    """Computes the best subtrees below an accepted node, for every number of nodes and every depth.

    ``value[d, m]`` is the expected number of accepted tokens of the best m nodes that are at most d
    levels deep. Child b of a node is accepted with probability ``rates[b]``. With s[b] nodes given
    to child b (itself included) the value is the sum of rates[b] * (1 + value[d - 1, s[b] - 1]).

    Args:
        rates: float [W], acceptance rate by sibling rank.
        nodes, depth: the largest number of nodes, and the largest depth.
    """

    def __init__(self, rates: NDArray[np.float64], nodes: int, depth: int) -> None:
        width = len(rates)
        self.value = np.zeros((depth + 1, nodes + 1))
        self.given = np.zeros((depth + 1, width, nodes + 1), np.int64)
        for level in range(1, depth + 1):
            # rest[m]: the best value of m nodes below children b, b + 1, ...
            rest = np.zeros(nodes + 1)
            for rank in range(width - 1, -1, -1):
                alone = rates[rank] * (1.0 + self.value[level - 1])  # Value of s - 1 further nodes.
                best = np.zeros(nodes + 1)
                for total in range(1, nodes + 1):
                    choices = alone[:total] + rest[total - 1 :: -1]
                    share = int(np.argmax(choices))
                    best[total] = choices[share]
                    self.given[level, rank, total] = share + 1
                rest = best
            self.value[level] = rest

    def shape(self, nodes: int, depth: int) -> Shape:
        """Return the tree shape that attains ``value[depth, nodes]``."""
        shape: dict[Path, int] = {}

        def descend(path: Path, left: int, level: int) -> None:
            rank = 0
            while left > 0 and level > 0 and rank < self.given.shape[1]:
                share = int(self.given[level, rank, left])
                descend((*path, rank), share - 1, level - 1)
                left -= share
                rank += 1
            if rank:
                shape[path] = rank

        descend((), nodes, depth)
        return shape


@lru_cache(maxsize=64)
def _forest(rates: tuple[float, ...], nodes: int) -> Forest:
    return Forest(np.array(rates), nodes, min(DEEPEST, nodes))


@declare("budget", "sequoia", paper="Sequoia", arxiv="2402.12374")
class Sequoia(Shaped):
    """Grow the tree of the size and depth that promise the most tokens per second.

    Chen et al. 2024 (arXiv 2402.12374). The paper measures acceptance by sibling rank beforehand.
    Here the rates come from the tenant's verifications so far.
    """

    def choose(self, seq: TokenSequence) -> Shape:
        if self.count == 0:
            return {}
        # Rounded, so that small changes of the rates do not need a new dynamic programme.
        rates = tuple((np.round(self._ranks.rates * 20) / 20).tolist())
        forest = _forest(rates, self.count)
        base = seq.step_seconds(1)
        if base is None:
            return forest.shape(self.count, len(forest.value) - 1)
        verify = [seq.step_seconds(1 + nodes) or base for nodes in range(self.count + 1)]
        depths = np.arange(len(forest.value))[:, None]
        speed = (1 + seq.neighbours + forest.value) / (np.array(verify) + depths * self._draft)
        depth, nodes = np.unravel_index(int(np.argmax(speed[1:, 1:])), speed[1:, 1:].shape)
        return forest.shape(int(nodes) + 1, int(depth) + 1)
