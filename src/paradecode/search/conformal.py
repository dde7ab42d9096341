"""Conformal p-values: how unusual a score is among scores that were calibrated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def p_value(score: float, calibrated: Sequence[float]) -> float:
    """The share of scores at least as high, itself counted among them.

    If the score and the m calibrated ones are exchangeable, this is at most a with a probability of
    at most a, and of floor(a (m + 1)) / (m + 1) where no two are equal (Vovk et al. 2005).

    Args:
        calibrated: ascending.
    """
    above = len(calibrated) - bisect_left(calibrated, score)
    return (1 + above) / (1 + len(calibrated))
