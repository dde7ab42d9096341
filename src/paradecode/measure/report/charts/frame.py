"""What charts have in common: sizes, whiskers, hover texts, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paradecode.measure.report.axes import Scale
from paradecode.measure.report.drawing import Drawing, Stroke
from paradecode.measure.report.palette import Look
from paradecode.measure.report.sheet import Line
from paradecode.measure.statistics import Interval
from paradecode.measure.tables import number

WIDTH = 760.0
Looks = Mapping[tuple[str, str], Look]


def look_of(line: Line, looks: Looks) -> Look:
    """How the marks of a line look."""
    return looks[line.family, line.name]


def whisker_x(drawing: Drawing, found: Interval, scale: Scale, y: float, key: int) -> None:
    """A horizontal interval with caps; none where it is not known."""
    if found.low == found.high:
        return
    low, high = scale(max(found.low, scale.low)), scale(min(found.high, scale.high))
    for points in (
        ((low, y), (high, y)), ((low, y - 3.5), (low, y + 3.5)), ((high, y - 3.5), (high, y + 3.5)),
    ):  # fmt: skip
        drawing.add(Stroke(points, "ink", 1.3, opacity=0.75, key=key))


def said(found: Interval | None, unit: str = "", factor: float = 1.0) -> str:
    """``470 tokens/s (459 to 481)``."""
    if found is None:
        return "not measured"
    value, low, high = (number(factor * v) for v in (found.value, found.low, found.high))
    return f"{value}{unit} ({low} to {high})"


def tip(line: Line, *facts: str) -> str:
    """What shows on hover: the name, its standing, and facts."""
    return "\n".join([line.name, *([line.badge] if line.badge else []), *facts])


def charted(lines: Sequence[Line], most: int) -> list[Line]:
    """The lines that a crowded chart shows: plain ones, and the fastest of the others."""
    ranked = sorted(
        (line for line in lines if line.charted),
        key=lambda line: (not line.muted, -(line.speed.value if line.speed else 0.0)),
    )
    kept = ranked[:most]
    return [line for line in lines if line in kept]
