"""Running estimates of how often draft tokens are accepted, by kind of evidence."""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 0.9
"""What an old trial counts after each later one of its kind: texts change."""


class Odds:
    """A forgetting Beta estimate for each bucket.

    Args:
        prior: acceptance expected in each bucket before anything was seen; worth two trials.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._prior = list(prior)
        self._accepted = [0.0] * len(prior)
        self._tried = [0.0] * len(prior)

    def of(self, bucket: int) -> float:
        """Probability that a draft token is accepted, given that those before it were."""
        return (2.0 * self._prior[bucket] + self._accepted[bucket]) / (2.0 + self._tried[bucket])

    def update(self, bucket: int, accepted: int, tried: int) -> None:
        """Book a verification: ``accepted`` tokens out of the ``tried`` that could be judged."""
        self._accepted[bucket] = MEMORY * self._accepted[bucket] + accepted
        self._tried[bucket] = MEMORY * self._tried[bucket] + tried
