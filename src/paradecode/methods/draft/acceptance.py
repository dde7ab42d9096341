"""Estimate how often draft tokens are accepted, and correct a drafter's own estimates.

:class:`Odds` counts acceptances for each kind of evidence. :class:`Calibration` compares
acceptances with the probabilities that a drafter estimated. The native core has the same estimates
in ``csrc/lookup.cpp``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KIND_MEMORY = 0.9
"""Decay factor: each new trial of a kind of evidence multiplies that kind's older counts by it.

A lower value adapts faster to the text.
"""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)


class Odds:
    """Estimates the acceptance probability of draft tokens for each kind of evidence.

    A kind of evidence is a class of reasons to draft a token, such as the number of tokens that
    match before a copy. The estimate of a kind is the mean of a Beta distribution in which old
    trials count less.

    Args:
        prior: the expected acceptance of each kind before any trial. It weighs as much as two
            trials.

    Attributes:
        totals: for each kind, the number of accepted tokens and the number of tried tokens, without
            decay.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._prior = list(prior)
        self._accepted = [0.0] * len(prior)
        self._tried = [0.0] * len(prior)
        self.totals = [(0, 0)] * len(prior)

    def of(self, kind: int) -> float:
        """Return the probability that a token of this kind is accepted if its parent is."""
        return (2.0 * self._prior[kind] + self._accepted[kind]) / (2.0 + self._tried[kind])

    def update(self, kind: int, accepted: int, tried: int) -> None:
        """Record a verification that accepted ``accepted`` of the ``tried`` tokens of this kind.

        ``tried`` counts only tokens whose ancestors were accepted, because no other token is
        judged.
        """
        self._accepted[kind] = KIND_MEMORY * self._accepted[kind] + accepted
        self._tried[kind] = KIND_MEMORY * self._tried[kind] + tried
        before = self.totals[kind]
        self.totals[kind] = before[0] + accepted, before[1] + tried

    def read(self) -> list[list[float]]:
        """Return the state as floats, for :class:`paradecode.core.multi_step.LookupState`."""
        right, tried = ([float(total[at]) for total in self.totals] for at in (0, 1))
        return [self._prior, self._accepted, self._tried, right, tried]

    def write(self, known: list[list[float]]) -> None:
        """Replace the state by one from :meth:`read`, which the native core may have changed."""
        self._prior, self._accepted, self._tried, right, tried = known
        self.totals = [(int(a), int(b)) for a, b in zip(right, tried, strict=True)]


class BothOdds(Odds):
    """Joins two :class:`Odds`: first the kinds of evidence of ``one``, then of ``other``."""

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
    """Return the kind of evidence, 0 to 10, for a token that was stored with this probability.

    The stored probability is not the chance of acceptance, because the text before the token
    differs now. The acceptance of each kind is therefore counted.
    """
    return bisect_right(_EDGES, probability)


BUCKETS = 8
MEMORY = 0.95
"""Decay factor: each new verification multiplies the weight of all earlier ones by it.

A lower value adapts faster to the text and the drafter.
"""
MOST_WEIGHT = 1e100
PRIOR = 4.0
"""The weight of the initial belief that the drafter's estimates are right, in expected nodes."""


class Calibration:
    """Corrects a drafter's acceptance estimates by the ratio of accepted to expected nodes.

    There is one ratio for all nodes together, and one for each bucket of nodes with similar
    estimates. A correction may raise or lower a probability.

    The ratio of a bucket with few nodes stays close to the overall ratio. Every verification lowers
    the weight of old counts in all buckets, also in buckets without a verified node. Nodes that
    were given up as hopeless therefore get another chance.
    """

    def __init__(self) -> None:
        # Old counts are not scaled down at every step. New ones get a larger weight instead.
        self._weight = 1.0
        self._promised = [0.0] * (2 * BUCKETS)
        self._accepted = [0.0] * (2 * BUCKETS)
        self._overall = 1.0
        self._ratios: NDArray[np.float64] | None = None  # One per bucket; None: compute anew.

    def of(
        self, reach: NDArray[np.floating], later: NDArray[np.bool_] | bool = False
    ) -> NDArray[np.float64]:
        """Return the corrected probabilities that nodes are accepted, in the shape of ``reach``.

        Args:
            reach: probabilities that the drafter estimated.
            later: True for nodes that are not their parent's first child. They have buckets of
                their own.
        """
        if self._ratios is None:
            self._ratios = np.array([self._ratio(bucket) for bucket in range(2 * BUCKETS)])
        return np.minimum(reach * self._ratios[_bucket(reach, later)], 1.0)

    def one(self, reach: float) -> float:
        """Return the corrected probability of one node that is a first child.

        This is faster than :meth:`of` with an array of one number.
        """
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
        """Record a verification.

        Args:
            reach: probabilities that the drafter estimated for the verified nodes.
            accepted: indices of the accepted nodes.
            later: see :meth:`of`.
        """
        self._weight, self._ratios = self._weight / MEMORY, None
        if self._weight > MOST_WEIGHT:
            self._promised = [value / self._weight for value in self._promised]
            self._accepted = [value / self._weight for value in self._accepted]
            self._weight = 1.0
        # Lists, because NumPy's calls cost more than they save on the few nodes of a draft.
        promises, right = reach.tolist(), set(accepted)
        own = later.tolist() if isinstance(later, np.ndarray) else [later] * len(promises)
        for node, (promise, is_later) in enumerate(zip(promises, own)):
            bucket = min(int(promise * BUCKETS), BUCKETS - 1) + (BUCKETS if is_later else 0)
            self._promised[bucket] += self._weight * promise
            self._accepted[bucket] += self._weight * (node in right)
        prior = PRIOR * self._weight
        self._overall = (prior + _sum(self._accepted)) / (prior + _sum(self._promised))

    def read(self) -> list[float]:
        """Return the state as floats, for :class:`paradecode.core.multi_step.BudgetState`."""
        return [self._weight, self._overall, *self._promised, *self._accepted]

    def write(self, known: list[float]) -> None:
        """Replace the state by one from :meth:`read`, which the native core may have changed."""
        (self._weight, self._overall), self._ratios = known[:2], None
        self._promised, self._accepted = known[2 : 2 + 2 * BUCKETS], known[2 + 2 * BUCKETS :]


def _sum(values: list[float]) -> float:
    """Return the sum from left to right, rounded after each term like the native core's sum.

    Python's ``sum`` rounds differently since version 3.12.
    """
    total = 0.0
    for value in values:
        total += value
    return total


def _bucket(reach: NDArray[np.floating], later: NDArray[np.bool_] | bool) -> NDArray[np.int64]:
    buckets: NDArray[np.int64] = np.minimum((reach * BUCKETS).astype(np.int64), BUCKETS - 1)
    return buckets + BUCKETS * np.asarray(later, np.int64)
