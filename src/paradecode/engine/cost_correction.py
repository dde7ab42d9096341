"""A cost curve that follows the machine: its forwards are watched after it was measured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from paradecode.engine.cost import CostCurve, Load

LEVEL, SHAPE = 0.1, 0.01
"""Exponents by which a forward that deviates moves all points, and the points beside its rows;
higher follows the machine faster, and its noise."""
MOST = 2.0
"""The largest factor by which a forward counts as slower or faster than expected. It bounds the
effect of other programs that run at the same time."""
ENOUGH = 0.02
"""Relative change of a point that makes a new curve; higher makes new curves less often."""


class CostCorrection:
    """Corrects a curve by the seconds that forwards take.

    The machine may have been busy when the curve was measured, and its speed changes: memory and
    arithmetic each in their own way. Each point of the grid has a factor. A forward moves the
    factors of all points a little, as if the whole machine had changed, and those of the points
    beside its rows a little more.

    Attributes:
        curve: the corrected curve.
    """

    def __init__(self, measured: CostCurve) -> None:
        self.curve = self._measured = measured
        self._level, self._shape = 1.0, [1.0] * len(measured.rows)
        self._used = list(self._shape)

    def observe(self, forwards: Iterable[tuple[int, float]], context: int) -> CostCurve:
        """Learn from forwards, (rows, seconds) each, that see ``context`` tokens; returns the
        new curve."""
        rows = self._measured.rows
        for count, seconds in forwards:
            at = min(max(bisect_right(rows, count) - 1, 0), len(rows) - 1)
            after = min(at + 1, len(rows) - 1)
            share = (count - rows[at]) / (rows[after] - rows[at]) if after > at else 0.0
            share = min(max(share, 0.0), 1.0)
            shape = self._shape[at] * (1 - share) + self._shape[after] * share
            off = seconds / (self._measured.at(count, context) * self._level * shape)
            off = min(max(off, 1 / MOST), MOST)
            self._level *= off**LEVEL
            self._shape[at] *= off ** (SHAPE * (1 - share))
            self._shape[after] *= off ** (SHAPE * share)
        factors = [self._level * shape for shape in self._shape]
        if any(abs(new / old - 1) > ENOUGH for new, old in zip(factors, self._used)):
            self._used = factors
            self.curve = self._corrected()
        return self.curve

    def correct(self, load: Load, forwards: Iterable[tuple[int, float]], context: int) -> None:
        """Correct the load's curve by these forwards, unless somebody has set another curve."""
        if load.curve is self.curve:
            load.curve = self.observe(forwards, context)

    def _corrected(self) -> CostCurve:
        seconds = []
        for column in self._measured.seconds:
            most, times = 0.0, []
            for time, factor in zip(column, self._used):  # More rows never cost less.
                most = max(most, time * factor)
                times.append(most)
            seconds.append(tuple(times))
        return CostCurve(self._measured.rows, self._measured.contexts, tuple(seconds))
