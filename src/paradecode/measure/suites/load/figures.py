"""Figures with 95 % intervals: percentiles of requests, and rates of rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; the last for all above."""


@dataclass(frozen=True)
class Figure:
    """A value and the ends of its interval; an end that the data do not bound is None."""

    value: float
    low: float | None = None
    high: float | None = None


def percentile(values: Sequence[float], share: float) -> Figure | None:
    """A percentile, bounded by order statistics, which holds for any distribution.

    The number of values below the true percentile is binomial, so the interval ends at the values
    of two ranks. Few requests do not bound a high percentile: its upper end is then None.

    Args:
        values: of requests; None is returned for none.
        share: 0.99 for the 99th.
    """
    if not values:
        return None
    ordered, count = np.sort(np.asarray(values, np.float64)), len(values)
    ranks = np.arange(1, count + 1)
    ways = np.concatenate([[0.0], np.cumsum(np.log((count - ranks + 1) / ranks))])
    below = np.arange(count + 1)
    chance = np.exp(ways + below * math.log(share) + (count - below) * math.log1p(-share))
    up_to = np.cumsum(chance)
    low = int(np.searchsorted(up_to, 0.025, side="right"))
    high = int(np.searchsorted(up_to, 0.975, side="left")) + 1
    return Figure(
        float(np.quantile(ordered, share)),
        float(ordered[low - 1]) if low >= 1 else None,
        float(ordered[high - 1]) if high <= count else None,
    )


def rate(amounts: Sequence[float], seconds: Sequence[float]) -> Figure | None:
    """All amounts over all seconds; the interval is Student's, over the rounds' own rates.

    Rates are compared by their ratios, so the interval is that of their logarithms. One round has
    no interval.
    """
    if not amounts or sum(seconds) <= 0:
        return None
    value = sum(amounts) / sum(seconds)
    if len(amounts) < 2 or min(amounts) <= 0:
        return Figure(value)
    return _around(value, [math.log(a / s) for a, s in zip(amounts, seconds, strict=True)])


def speedup(rates: Sequence[float], base: Sequence[float], value: float) -> Figure | None:
    """``value``, a ratio of two rates, with the interval of the rounds' own ratios (paired)."""
    if len(rates) != len(base) or len(rates) < 2 or min(*rates, *base) <= 0:
        return Figure(value)
    return _around(value, [math.log(a / b) for a, b in zip(rates, base, strict=True)])


def _around(value: float, logs: Sequence[float]) -> Figure:
    freedom = len(logs) - 1
    half = STUDENT[min(freedom, len(STUDENT)) - 1] * np.std(logs, ddof=1) / math.sqrt(len(logs))
    return Figure(value, value * math.exp(-half), value * math.exp(half))
