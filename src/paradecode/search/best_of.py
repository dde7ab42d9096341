"""Best of n: several samples, and the one with the highest score."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from paradecode.methods.parts import declare, parameter
from paradecode.search.branch import (
    Asked,
    Branch,
    Grow,
    Rate,
    Searched,
    SearchTask,
    Start,
    in_order,
)


@declare("search", "best-of", paper="Stiennon et al. 2020", arxiv="2009.01325")
@dataclass
class BestOf:
    """Samples n outputs at once and returns the one that the scorer likes most.

    Without a scorer this is the output whose tokens have the highest mean log-probability. Of equal
    scores, the earlier branch wins.

    When: a scorer is at hand that tells good answers from bad ones.
    """

    n: int = parameter(4, 1, 64, "samples")

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        starts = [Start(seed, score=not task.scorer) for seed in range(self.n)]
        grown: list[Branch] = yield Grow(starts)
        scores: list[float] = yield Rate(grown)
        return in_order(grown, scores)
