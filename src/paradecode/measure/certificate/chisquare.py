"""The likelihood-ratio chi-square test of counts against a known law (Wilks 1938).

At a false-alarm rate of one in a million Pearson's statistic does not follow the chi-square law: a
cell that expects ten requests raises the alarm fifteen times too often. The likelihood ratio G
does, within a factor of two (the tests count both exactly).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, lgamma, log, sqrt

FALSE_ALARM = 1e-6
"""Chance that a certificate rejects a method that keeps its promise."""
IMPOSSIBLE = 1e9
"""A statistic whose p is 0, and which JSON can hold."""
NOMINAL = FALSE_ALARM / 2
"""The level that is tested at: the other half pays for the approximation."""


def statistic(seen: Sequence[int], shares: Sequence[float]) -> float:
    """G = 2 sum O ln(O / E); ``IMPOSSIBLE`` when something was seen that cannot be."""
    total = sum(seen)
    value = 0.0
    for count, share in zip(seen, shares, strict=True):
        if count and share <= 0.0:
            return IMPOSSIBLE
        if count:
            value += 2.0 * count * log(count / (total * share))
    return max(value, 0.0)


def p_value(value: float, freedom: int) -> float:
    """Chance that a chi-square variable of ``freedom`` degrees is at least ``value``."""
    if freedom <= 0 or value <= 0.0:
        return 1.0
    half = value / 2.0
    # Whole and half integers have finite sums: sum of half^a exp(-half) / Gamma(a + 1).
    start = 0.0 if freedom % 2 == 0 else 0.5
    tail = 0.0 if start == 0.0 else erfc(sqrt(half))
    order = start
    while order < freedom / 2.0:
        tail += exp(order * log(half) - half - lgamma(order + 1.0))
        order += 1.0
    return min(tail, 1.0)
