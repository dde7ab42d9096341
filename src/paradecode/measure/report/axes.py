"""Scales with round ticks, and the grid behind a chart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paradecode.measure.report.drawing import Drawing, Stroke, Text


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, 1e-9) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values inside of the range."""
        if self.log:
            steps = [m * 10.0**e for e in range(-6, 9) for m in (1, 2, 5)]
            return [step for step in steps if self.low <= step <= self.high]
        step = round_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def round_step(rough: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is not below ``rough``."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))


def plainly(value: float) -> str:
    """A tick: ``0.5``, ``20``, ``1.25``."""
    return f"{value:.10g}"


def grid_x(
    drawing: Drawing, scale: Scale, top: float, bottom: float,
    label: Callable[[float], str] = plainly,
) -> None:  # fmt: skip
    """Vertical lines with their values below."""
    for tick in scale.ticks():
        x = scale(tick)
        drawing.add(
            Stroke(((x, top), (x, bottom)), "grid"),
            Text(x, bottom + 16, label(tick), 11, "middle", "soft"),
        )


def grid_y(
    drawing: Drawing, scale: Scale, left: float, right: float,
    label: Callable[[float], str] = plainly,
) -> None:  # fmt: skip
    """Horizontal lines with their values on the left."""
    for tick in scale.ticks():
        y = scale(tick)
        drawing.add(
            Stroke(((left, y), (right, y)), "grid"),
            Text(left - 8, y + 4, label(tick), 11, "end", "soft"),
        )
