"""Names of curves at their right ends, instead of a legend."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.report.charts.frame import WIDTH, Looks, look_of
from paradecode.measure.report.drawing import Drawing, Point, Stroke, Text, shortened, spread
from paradecode.measure.report.sheet import Line

GAP = 16.0


def end_labels(
    drawing: Drawing, ends: Sequence[tuple[Line, Point]], looks: Looks,
    x: float, top: float, bottom: float,
) -> None:  # fmt: skip
    """Write each name near the end of its curve, none over another."""
    places = spread([y for _, (_, y) in ends], GAP, top + 4, bottom - 2)
    for (line, (end_x, end_y)), y in zip(ends, places):
        look = look_of(line, looks)
        drawing.add(
            Stroke(((end_x + 5, end_y), (x + 2, y)), look.colour, 1, (1.5, 2.5), key=look.key),
            Text(x + 6, y + 4, shortened(line.name, WIDTH - x - 8), 12, colour=look.colour,
                 bold=True, tip=line.name, key=look.key),
        )  # fmt: skip
