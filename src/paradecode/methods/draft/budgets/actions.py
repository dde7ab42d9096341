"""Shapes of delayed trees: one trunk, then branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.draft.budgets.shapes import Path, Shape

BRANCHES, LONGEST = 4, 8
"""Most branches, and most levels of the trunk and of a branch."""


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
