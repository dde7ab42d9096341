"""Draws the speed by kind of task, as dots with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode_lab.measure.charts.chart import (
    Chart,
    Looks,
    charted,
    look_of,
    mark,
    said,
    shortened,
    tip_of,
    whisker,
)
from paradecode_lab.measure.charts.style import bare, light
from paradecode_lab.measure.sheet import Line, Sheet

MOST = 7
STEP, SPACE, ACROSS = 0.085, 0.13, 100
"""Inches of a line, inches between groups, and number of letters in a row of the legend."""


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return the chart; None if fewer than two groups were measured."""
    lines = [line for line in charted(sheet.lines, MOST) if line.groups]
    if sheet.groups_over:
        lines = [line for line in lines if line.name != sheet.baseline]
    if not lines or len(sheet.groups) < 2:
        return None
    unit = f"Times as fast as {sheet.baseline}" if sheet.groups_over else "Tokens per second"
    return Chart(
        "Speed by kind of task",
        f"{unit}; whiskers are 95 % intervals.",
        1.0 + (STEP * len(lines) + SPACE) * len(sheet.groups),
        lambda figure: _paint(figure, sheet, lines, looks),
    )


def _paint(figure: Any, sheet: Sheet, lines: Sequence[Line], looks: Looks) -> None:
    axes = figure.add_subplot()
    bare(axes, "x")
    groups = sheet.groups
    axes.set_yticks(range(len(groups)), groups)
    axes.tick_params(axis="y", labelcolor=light("ink"))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    for row in range(0, len(groups), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=light("band"), linewidth=0, zorder=0)
    found = [line.groups[group] for line in lines for group in groups if group in line.groups]
    low, over = min(each.low for each in found), sheet.groups_over
    start = max(0.0, low - 0.15) if over and low > 0.3 else 0.0
    end = 1.02 * min(max(each.high for each in found), 1.6 * max(each.value for each in found))
    axes.set_xlim(start, end)
    if over and start < 1 < end:
        axes.axvline(1, color=light("soft"), linewidth=1.1)
    step = STEP / (STEP * len(lines) + SPACE)
    handles = []
    for place, line in enumerate(lines):
        look = look_of(line, looks)
        style = {"color": look.tint, "markersize": 5}
        style |= {"markerfacecolor": light("paper")} if line.muted else {}
        for row, group in enumerate(groups):
            if group not in line.groups:
                continue
            each, y = line.groups[group], row + step * (place - (len(lines) - 1) / 2)
            shown = type(each)(each.value, max(each.low, start), min(each.high, end))
            whisker(axes, shown, y, look, look.colour)
            (dot,) = axes.plot(each.value, y, look.marker, **style)
            mark(dot, look, tip_of(line, f"{group}: {said(each, '×' if over else ' tokens/s')}"))
        handles += axes.plot([], [], look.marker, label=shortened(line.name), **style)
    columns = max(1, ACROSS // (6 + max(len(shortened(line.name)) for line in lines)))
    legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
    for text, line in zip(legend.get_texts(), lines):
        mark(text, look_of(line, looks), tip_of(line))
