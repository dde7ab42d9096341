"""Draws what each kind of task loses when more tokens are decided at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paradecode_lab.measure.charts.chart import Chart, Looks, look_of, mark
from paradecode_lab.measure.charts.style import SMALL, bare
from paradecode_lab.measure.sheet import Line, Sheet

ACROSS = 4
"""Number of panels in a row."""


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return the chart with a panel for each kind of task; None if no line has such figures."""
    families: dict[str, list[Line]] = {}
    for line in sheet.lines:
        if line.by_parallelism:
            families.setdefault(line.name.partition("(")[0], []).append(line)
    tasks = list(
        dict.fromkeys(t for own in families.values() for e in own for t in e.by_parallelism)
    )
    if not tasks:
        return None
    return Chart(
        "Where deciding many tokens at a time breaks the answer",
        f"{sheet.quality_label}; bands are 95 % intervals.",
        0.7 + 1.5 * -(-len(tasks) // ACROSS),
        lambda figure: _paint(figure, tasks, families, looks),
    )


def _paint(
    figure: Any, tasks: Sequence[str], families: Mapping[str, Sequence[Line]], looks: Looks
) -> None:
    across = min(ACROSS, len(tasks))
    down = -(-len(tasks) // across)
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, task in zip(grid, tasks):
        bare(axes)
        axes.set_title(task, loc="left", fontsize=SMALL)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axes.set_ylim(-0.04, 1.04)
        for family, lines in families.items():
            found = [line.by_parallelism[task] for line in lines if task in line.by_parallelism]
            found.sort(key=lambda pair: pair[0].value)
            look, places = look_of(lines[-1], looks), [tokens.value for tokens, _ in found]
            (curve,) = axes.plot(
                places, [quality.value for _, quality in found], color=look.tint,
                marker=look.marker, markersize=3.5, linewidth=1.4, label=family,
            )  # fmt: skip
            band = axes.fill_between(
                places, [quality.low for _, quality in found],
                [quality.high for _, quality in found], color=look.tint, alpha=0.12, linewidth=0,
            )  # fmt: skip
            mark(curve, look)
            mark(band, look)
    for axes in grid[len(tasks) :]:
        axes.axis("off")
    figure.supxlabel("tokens per forward that decides", fontsize=SMALL)
    handles = grid[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=len(families), frameon=False)
