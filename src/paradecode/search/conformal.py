"""Conformal p-values: how unusual a score is among scores that were calibrated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def p_value(score: float, calibrated: Sequence[float]) -> float:
    """The share of scores that are at least as high, where the score itself counts as one of them.

    If the score and the m calibrated ones are exchangeable, the p-value is at most a with a
    probability of at most a. The probability is floor(a (m + 1)) / (m + 1) where no two scores are
    equal (Vovk et al. 2005).

    Args:
        calibrated: scores, ascending.
    """
    above = len(calibrated) - bisect_left(calibrated, score)
    return (1 + above) / (1 + len(calibrated))
