"""Saves charts as PNG files with their titles; several charts share a picture in two columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.charts.chart import WIDTH, Chart
from paradecode_lab.measure.charts.style import (
    LARGE,
    NORMAL,
    can_draw,
    drawing,
    headline,
    light,
    new_figure,
    save,
)

GET = "pip install -e 'lab[plots]' in the checkout"
COLUMNS = 2
LETTERS = 120
"""The most letters in a line of a subtitle."""


def save_charts(charts: Sequence[Chart], path: Path, title: str = "") -> Path:
    """Save all charts as one picture.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    if not can_draw():
        raise InvalidInput("output", str(path), f"for pictures: {GET}")
    with drawing():
        return save(poster(charts, title), path)


def poster(charts: Sequence[Chart], title: str = "") -> Any:
    """Return a figure with all charts and their titles; call it inside ``drawing()``."""
    columns: list[list[tuple[Chart, float]]] = [[] for _ in range(min(COLUMNS, len(charts)) or 1)]
    for chart in charts:
        shortest = min(columns, key=_height)
        shortest.append((chart, _head(chart)))
    height = max(map(_height, columns))
    figure = new_figure(WIDTH * len(columns), height + (0.7 if title else 0.0))
    if title:
        headline(figure, title)
    parts = figure.subfigures(1, len(columns), squeeze=False)[0]
    for part, placed in zip(parts, columns):
        sizes = [size for chart, head in placed for size in (head, chart.height)]
        rest = [height - sum(sizes)] if height > sum(sizes) else []
        rows = part.subfigures(len(sizes) + len(rest), 1, squeeze=False,
                               height_ratios=[*sizes, *rest])[:, 0]  # fmt: skip
        for (chart, _), above, below in zip(placed, rows[::2], rows[1::2]):
            lines = "\n".join(wrap(chart.subtitle, LETTERS))
            above.text(0.02, 0.8, chart.title, va="top", fontsize=LARGE, fontweight="bold")
            above.text(0.02, 0.06, lines, va="bottom", fontsize=NORMAL, color=light("soft"))
            chart.paint(below)
    return figure


def _head(chart: Chart) -> float:
    """Return the height of a chart's title and subtitle, in inches."""
    return 0.45 + 0.18 * len(wrap(chart.subtitle, LETTERS))


def _height(column: Sequence[tuple[Chart, float]]) -> float:
    return sum(chart.height + head for chart, head in column)
