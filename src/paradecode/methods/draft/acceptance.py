"""How often draft tokens are accepted, by the kind of evidence for them, and compared with
promises.

The native core has the same in ``csrc/lookup.cpp``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KIND_MEMORY = 0.9
"""Factor on an old trial's weight at each later trial of its kind; lower follows the text
faster."""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)


class Odds:
    """Acceptance of each kind of evidence: a Beta estimate in which old trials count less.

    Args:
        prior: acceptance expected of each kind before anything was seen; worth two trials.

    Attributes:
        totals: for each kind, tokens accepted and tokens tried, nothing forgotten.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._prior = list(prior)
        self._accepted = [0.0] * len(prior)
        self._tried = [0.0] * len(prior)
        self.totals = [(0, 0)] * len(prior)

    def of(self, kind: int) -> float:
        """Probability that a draft token of this kind is accepted, given that those before it
        were."""
        return (2.0 * self._prior[kind] + self._accepted[kind]) / (2.0 + self._tried[kind])

    def update(self, kind: int, accepted: int, tried: int) -> None:
        """Book a verification: ``accepted`` tokens out of the ``tried`` that could be judged."""
        self._accepted[kind] = KIND_MEMORY * self._accepted[kind] + accepted
        self._tried[kind] = KIND_MEMORY * self._tried[kind] + tried
        before = self.totals[kind]
        self.totals[kind] = before[0] + accepted, before[1] + tried

    def read(self) -> list[list[float]]:
        """The state as numbers, for :class:`paradecode.core.multi_step.LookupState`."""
        right, tried = ([float(total[at]) for total in self.totals] for at in (0, 1))
        return [self._prior, self._accepted, self._tried, right, tried]

    def write(self, known: list[list[float]]) -> None:
        """Continue from numbers that :meth:`read` gave."""
        self._prior, self._accepted, self._tried, right, tried = known
        self.totals = [(int(a), int(b)) for a, b in zip(right, tried, strict=True)]


class BothOdds(Odds):
    """Two objects in one: the kinds of the first, and behind them those of the second."""

    def __init__(self, one: Odds, other: Odds) -> None:
        super().__init__(())
        self._one, self._other, self.first = one, other, len(one.totals)

    def of(self, kind: int) -> float:
        first = self.first
        return self._one.of(kind) if kind < first else self._other.of(kind - first)

    def update(self, kind: int, accepted: int, tried: int) -> None:
        odds, own = (self._one, kind) if kind < self.first else (self._other, kind - self.first)
        odds.update(own, accepted, tried)


def kind_of(probability: float) -> int:
    """The kind of evidence, 0 to 10, of a token with this stored probability.

    A token is right less often than the model once thought, because the text before it differs.
    """
    return bisect_right(_EDGES, probability)


BUCKETS = 8
MEMORY = 0.95
"""Factor on an old verification's weight at each later one; lower follows text and drafter
faster."""
MOST_WEIGHT = 1e100
PRIOR = 4.0
"""Weight of the prior opinion that the drafter's promises are right, in expected nodes."""


class Calibration:
    """Ratios of accepted to promised nodes, for all nodes together and for nodes of similar reach.

    A promise can be corrected upwards and downwards. A bucket with few nodes leans on the overall
    ratio. Buckets forget at every verification, even without a node of theirs, so a kind of node
    that was given up gets another chance.
    """

    def __init__(self) -> None:
        # Instead of making old numbers smaller at every step, new ones are made larger.
        self._weight = 1.0
        self._promised = [0.0] * (2 * BUCKETS)
        self._accepted = [0.0] * (2 * BUCKETS)
        self._overall = 1.0
        self._ratios: NDArray[np.float64] | None = None  # Of all buckets, until the next update.

    def of(
        self, reach: NDArray[np.floating], later: NDArray[np.bool_] | bool = False
    ) -> NDArray[np.float64]:
        """Corrected probabilities that nodes are accepted.

        Args:
            reach: what the drafter promised.
            later: nodes that are not their parent's first child; these keep a record of their own.
        """
        if self._ratios is None:
            self._ratios = np.array([self._ratio(bucket) for bucket in range(2 * BUCKETS)])
        return np.minimum(reach * self._ratios[_bucket(reach, later)], 1.0)

    def one(self, reach: float) -> float:
        """The corrected probability of one node, a first child; this is faster than arrays of
        one number."""
        return min(reach * self._ratio(min(int(reach * BUCKETS), BUCKETS - 1)), 1.0)

    def _ratio(self, bucket: int) -> float:
        prior = PRIOR * self._weight
        return (prior * self._overall + self._accepted[bucket]) / (prior + self._promised[bucket])

    def update(
        self,
        reach: NDArray[np.floating],
        accepted: list[int],
        later: NDArray[np.bool_] | bool = False,
    ) -> None:
        """Book a verification: the probabilities that its nodes promised, and which nodes were
        accepted."""
        self._weight, self._ratios = self._weight / MEMORY, None
        if self._weight > MOST_WEIGHT:
            self._promised = [value / self._weight for value in self._promised]
            self._accepted = [value / self._weight for value in self._accepted]
            self._weight = 1.0
        # Lists: a draft has a few nodes, for which NumPy's calls cost more than they do.
        promises, right = reach.tolist(), set(accepted)
        own = later.tolist() if isinstance(later, np.ndarray) else [later] * len(promises)
        for node, (promise, is_later) in enumerate(zip(promises, own)):
            bucket = min(int(promise * BUCKETS), BUCKETS - 1) + (BUCKETS if is_later else 0)
            self._promised[bucket] += self._weight * promise
            self._accepted[bucket] += self._weight * (node in right)
        prior = PRIOR * self._weight
        self._overall = (prior + _sum(self._accepted)) / (prior + _sum(self._promised))

    def read(self) -> list[float]:
        """The state as numbers, for :class:`paradecode.core.multi_step.BudgetState`."""
        return [self._weight, self._overall, *self._promised, *self._accepted]

    def write(self, known: list[float]) -> None:
        """Continue from numbers that :meth:`read` gave."""
        (self._weight, self._overall), self._ratios = known[:2], None
        self._promised, self._accepted = known[2 : 2 + 2 * BUCKETS], known[2 + 2 * BUCKETS :]


def _sum(values: list[float]) -> float:
    """The sum from left to right, rounded after each term; the built-in ``sum`` rounds otherwise
    since Python 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def _bucket(reach: NDArray[np.floating], later: NDArray[np.bool_] | bool) -> NDArray[np.int64]:
    buckets: NDArray[np.int64] = np.minimum((reach * BUCKETS).astype(np.int64), BUCKETS - 1)
    return buckets + BUCKETS * np.asarray(later, np.int64)
