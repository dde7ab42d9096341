"""Where the time of a token goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.measure.charts.chart import Chart, mark, name_rows, tip_of
from paradecode.measure.charts.looks import Looks, look_of
from paradecode.measure.charts.style import bare, light
from paradecode.measure.figures import PARTS
from paradecode.measure.sheet import Line, Sheet
from paradecode.measure.tables import number

MOST = 30
COLOURS = ("p0", "c0", "c2", "p3", "p4")


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """None where times were not split."""
    lines = [line for line in sheet.by_speed() if line.split][:MOST]
    if not lines:
        return None
    return Chart(
        "Where the time goes",
        "Milliseconds of decoding a token; shorter is faster.",
        0.8 + 0.27 * len(lines),
        lambda figure: _paint(figure, lines, looks),
    )


def _paint(figure: Any, lines: Sequence[Line], looks: Looks) -> None:
    axes = figure.add_subplot()
    bare(axes, "x")
    name_rows(axes, lines, looks)
    for row, line in enumerate(lines):
        look, total, spent = look_of(line, looks), sum(line.split.values()), 0.0
        for part, colour in zip(PARTS, COLOURS):
            own = line.split.get(part, 0.0)
            share = f"{100 * own / max(total, 1e-12):.0f} %"
            fact = f"{part}: {number(own)} ms a token, {share}"
            bar = axes.barh(
                row, own, left=spent, height=0.66, color=light(colour), label=None if row else part
            )[0]
            mark(bar, look, tip_of(line, fact))
            spent += own
        note = axes.annotate(
            f"{number(total)} ms", (total, row), (6, 0), textcoords="offset points",
            va="center", fontweight="bold",
        )  # fmt: skip
        mark(note, look)
    axes.set_xlim(0, max(sum(line.split.values()) for line in lines))
    figure.legend(loc="outside upper left", ncols=len(PARTS), frameon=False)
