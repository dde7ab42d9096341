"""Pearson's chi-square test of counts against a known distribution."""

from collections.abc import Hashable, Mapping
from math import erfc, sqrt

SIGNIFICANT = 1e-6


def p_value(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """Return the probability of counts at least this far from ``law``.

    Cells that expect fewer than 5 are merged. Uses Wilson and Hilferty's approximation of the
    chi-square distribution.
    """
    total = sum(counts.values())
    cells: list[tuple[float, float]] = []
    small = [0.0, 0.0]
    for cell, share in law.items():
        seen, expected = counts.get(cell, 0), total * share
        if expected < 5:
            small = [small[0] + seen, small[1] + expected]
        else:
            cells.append((seen, expected))
    if small[1] > 0:
        cells.append((small[0], small[1]))
    if set(counts) - set(law):
        return 0.0
    freedom = len(cells) - 1
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    spread = 2 / (9 * freedom)
    return 0.5 * erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / sqrt(2 * spread))
