"""Sequoia: the best tree shape for positional acceptance rates, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.budgets.shapes import Path, Shape, Shaped
from paradecode.methods.parts import declare

DEEPEST = 8


class Forest:
    """The best forests under an accepted node, for every number of nodes and every depth.

    ``value[d, m]`` is the expected number of accepted tokens of the best m nodes, at most d deep.
    Child b of a node is the accepted one with probability ``rates[b]``. With s[b] nodes given to
    child b (itself included) the value is the sum of rates[b] * (1 + value[d - 1, s[b] - 1]).

    Args:
        rates: float [W], by rank.
        nodes, depth: the largest sizes.
    """

    def __init__(self, rates: NDArray[np.float64], nodes: int, depth: int) -> None:
        width = len(rates)
        self.value = np.zeros((depth + 1, nodes + 1))
        self.given = np.zeros((depth + 1, width, nodes + 1), np.int64)
        for level in range(1, depth + 1):
            # rest[m]: the best that children b, b + 1, ... make of m nodes.
            rest = np.zeros(nodes + 1)
            for rank in range(width - 1, -1, -1):
                alone = rates[rank] * (1.0 + self.value[level - 1])  # Of s - 1 further nodes.
                best = np.zeros(nodes + 1)
                for total in range(1, nodes + 1):
                    choices = alone[:total] + rest[total - 1 :: -1]
                    share = int(np.argmax(choices))
                    best[total] = choices[share]
                    self.given[level, rank, total] = share + 1
                rest = best
            self.value[level] = rest

    def shape(self, nodes: int, depth: int) -> Shape:
        """The tree that attains ``value[depth, nodes]``."""
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
@dataclass
class Sequoia(Shaped):
    """Grow the tree of the size and depth that promise most tokens per second.

    Chen et al. 2024 (arXiv 2402.12374). The paper measures acceptance by sibling rank beforehand;
    here the rates are those of the tenant's verifications so far.
    """

    def choose(self, seq: TokenSequence) -> Shape:
        if self.count == 0:
            return {}
        # Rounded, so that small changes of the rates do not call for a new programme.
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
