"""Figures with 95 % intervals.

Every ratio is computed from column totals (tokens, seconds, counts). A mean of the prompts' ratios
would give a 10-token answer the weight of a 500-token answer. A resample of the bootstrap draws
prompts with replacement and recomputes the totals. Engines that are compared share the drawn
prompts, so intervals of ratios are paired. Shares, percentiles and rates have other intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
Z = 1.959964
"""Number of standard deviations from the mean to each end of a 95 % interval."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.

The last one stands for all higher degrees.
"""
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Maps column totals [..., C] to a value [...]."""


@dataclass(frozen=True)
class Estimate:
    """A value with the ends of its 95 % interval; an end is None if the data do not bound it."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Interval(Estimate):
    """A value with both ends of its 95 % interval."""

    low: float
    high: float


def interval(
    rows: Sequence[Sequence[float]] | NDArray[np.float64],
    statistic: Statistic,
    clusters: Sequence[str] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return a value with its interval by the percentile bootstrap.

    Args:
        rows: [N, C], one row for each measurement, one column for each quantity.
        statistic: column totals -> the value.
        clusters: name of each measurement's cluster, such as its prompt, which all turns of a
            conversation share. Whole clusters are drawn. None makes each measurement a cluster of
            its own.

    Returns:
        The value with its interval; None without rows, or if the divisor of a ratio is 0.
    """
    table = np.asarray(rows, np.float64)
    if table.ndim != 2 or len(table) == 0:
        return None
    if clusters is not None:
        _, index = np.unique(np.asarray(clusters), return_inverse=True)
        table = np.stack([np.bincount(index, weights=column) for column in table.T], axis=1)
    count = len(table)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(table.sum(axis=0)))
        if not np.isfinite(value):
            return None
        values = statistic(_draws(count, resamples, seed) @ table)
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, (0.025, 0.975)) if len(values) else (value, value)
    return Interval(value, float(low), float(high))


# Many figures of one run share these draws, and drawing takes most of the time.
@lru_cache(maxsize=8)
def _draws(count: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return how often each of ``count`` prompts is in each resample, as [resamples, count]."""
    shares = np.full(count, 1 / count)
    draws = np.random.default_rng(seed).multinomial(count, shares, size=resamples)
    return draws.astype(np.float64)  # Converted once, because the draws are multiplied many times.


def ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first total divided by the second."""
    return totals[..., 0] / totals[..., 1]


def ratio_of_ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (tokens / seconds) of one engine over (tokens / seconds) of the baseline."""
    return (totals[..., 0] / totals[..., 1]) / (totals[..., 2] / totals[..., 3])


def one_plus_ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 + accepted / drafts, from these two totals."""
    return 1.0 + totals[..., 0] / totals[..., 1]


def difference_of_ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratio of the first two totals minus the ratio of the last two."""
    return totals[..., 0] / totals[..., 1] - totals[..., 2] / totals[..., 3]


def wilson(successes: int, trials: int) -> Interval:
    """Return a share with Wilson's 95 % interval, which holds near 0 and 1 and for few trials."""
    z, share = Z, successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def gain(pairs: Sequence[tuple[bool, bool]]) -> Interval:
    """Return the difference of two paired shares, first minus second, with a 95 % interval.

    The interval is Bonett and Price's (2012): Wald's interval, after one pair of each kind of
    disagreement was added. Unlike a bootstrap interval it has a width even if no pair disagrees.
    """
    won = sum(first and not second for first, second in pairs)
    lost = sum(second and not first for first, second in pairs)
    p, q, n = won + 1, lost + 1, len(pairs) + 2
    middle = (p - q) / n
    half = Z * ((p + q) / n - middle**2) ** 0.5 / n**0.5
    return Interval((won - lost) / len(pairs), max(-1.0, middle - half), min(1.0, middle + half))


def percentile(values: Sequence[float], share: float) -> Estimate | None:
    """Return a percentile, with an interval by order statistics, which holds for any distribution.

    The number of values below the true percentile is binomial, so the interval ends at the values
    of two ranks. Few values do not bound a high percentile: its upper end is then None.

    Args:
        values: the sample; the result is None if it is empty.
        share: the percentile as a share, such as 0.99 for the 99th.
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
    return Estimate(
        float(np.quantile(ordered, share)),
        float(ordered[low - 1]) if low >= 1 else None,
        float(ordered[high - 1]) if high <= count else None,
    )


def rate(amounts: Sequence[float], seconds: Sequence[float]) -> Estimate | None:
    """Return all amounts over all seconds, with Student's interval over the rounds' own rates.

    Rates are compared by their ratios, so the interval is computed from logarithms. A single round
    has no interval.
    """
    if not amounts or sum(seconds) <= 0:
        return None
    value = sum(amounts) / sum(seconds)
    if len(amounts) < 2 or min(amounts) <= 0:
        return Estimate(value)
    return _around(value, [math.log(a / s) for a, s in zip(amounts, seconds, strict=True)])


def speedup(rates: Sequence[float], base: Sequence[float], value: float) -> Estimate:
    """Return ``value``, a ratio of two rates, with the interval of the rounds' paired ratios."""
    if len(rates) != len(base) or len(rates) < 2 or min(*rates, *base) <= 0:
        return Estimate(value)
    return _around(value, [math.log(a / b) for a, b in zip(rates, base, strict=True)])


def _around(value: float, logs: Sequence[float]) -> Interval:
    freedom = len(logs) - 1
    half = STUDENT[min(freedom, len(STUDENT)) - 1] * np.std(logs, ddof=1) / math.sqrt(len(logs))
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto-optimal points (cost saved, quality), from left to right.

    No other point is better than these in one coordinate and at least as good in the other.
    """
    best, kept = float("-inf"), []
    for index in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1])):
        if points[index][1] > best:
            best = points[index][1]
            kept.append(index)
    return kept[::-1]
