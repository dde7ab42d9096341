"""How often draft tokens are accepted, by the kind of evidence they rest on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

MEMORY = 0.9
"""What an old trial counts after each later one of its kind: texts change."""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)


class Odds:
    """A forgetting Beta estimate for each kind.

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
        """Probability that a draft token is accepted, given that those before it were."""
        return (2.0 * self._prior[kind] + self._accepted[kind]) / (2.0 + self._tried[kind])

    def update(self, kind: int, accepted: int, tried: int) -> None:
        """Book a verification: ``accepted`` tokens out of the ``tried`` that could be judged."""
        self._accepted[kind] = MEMORY * self._accepted[kind] + accepted
        self._tried[kind] = MEMORY * self._tried[kind] + tried
        before = self.totals[kind]
        self.totals[kind] = before[0] + accepted, before[1] + tried


def kind_of(probability: float) -> int:
    """Kind of evidence, 0 to 10, that a stored probability is.

    A token is right less often than the model once thought, because the text before it differs.
    """
    return bisect_right(_EDGES, probability)
