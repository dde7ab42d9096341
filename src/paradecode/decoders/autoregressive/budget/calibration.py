"""Corrects a drafter's promises by how they turned out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BUCKETS = 8
MEMORY = 0.95
"""What an old verification counts after each later one: texts change, and so do drafters."""
PRIOR = 4.0
"""Expected nodes that the prior is worth; what it says is that the drafter is right."""


class Calibration:
    """Accepted over promised, for all nodes together and for nodes of similar reach.

    Promises are corrected both ways. Buckets lean on the overall ratio, and forget at every
    verification whether they saw a node or not, so one that was given up gets another chance.
    """

    def __init__(self) -> None:
        self._promised = np.zeros(2 * BUCKETS)
        self._accepted = np.zeros(2 * BUCKETS)
        self._ratios = np.ones(2 * BUCKETS)
        self._listed = self._ratios.tolist()

    def of(
        self, reach: NDArray[np.floating], later: NDArray[np.bool_] | bool = False
    ) -> NDArray[np.float64]:
        """Corrected probabilities that nodes are accepted.

        Args:
            reach: what the drafter promised.
            later: nodes that are not their parent's first child; these keep a record of their own.
        """
        return np.minimum(reach * self._ratios[_bucket(reach, later)], 1.0)

    def one(self, reach: float) -> float:
        """The same for one node, a first child: NumPy is slow on single numbers."""
        return min(reach * self._listed[min(int(reach * BUCKETS), BUCKETS - 1)], 1.0)

    def update(
        self,
        reach: NDArray[np.floating],
        accepted: list[int],
        later: NDArray[np.bool_] | bool = False,
    ) -> None:
        """Book a verification: what its nodes promised, and which were accepted."""
        buckets = _bucket(reach, later)
        size = 2 * BUCKETS
        self._promised = MEMORY * self._promised + np.bincount(buckets, reach, size)
        self._accepted = MEMORY * self._accepted + np.bincount(buckets[accepted], minlength=size)
        overall = (PRIOR + self._accepted.sum()) / (PRIOR + self._promised.sum())
        self._ratios = (PRIOR * overall + self._accepted) / (PRIOR + self._promised)
        self._listed = self._ratios.tolist()


def _bucket(reach: NDArray[np.floating], later: NDArray[np.bool_] | bool) -> NDArray[np.int64]:
    buckets: NDArray[np.int64] = np.minimum((reach * BUCKETS).astype(np.int64), BUCKETS - 1)
    return buckets + BUCKETS * np.asarray(later, np.int64)
