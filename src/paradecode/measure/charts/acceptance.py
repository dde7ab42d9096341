"""How far down drafts are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.measure.charts.chart import Chart, charted, mark, name_ends, tip_of
from paradecode.measure.charts.looks import Looks, look_of
from paradecode.measure.charts.style import bare
from paradecode.measure.sheet import Line, Sheet

MOST, DEEPEST = 8, 16


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """None where nothing drafts."""
    lines = [line for line in charted(sheet.lines, MOST + 1) if line.acceptance]
    if not lines:
        return None
    return Chart(
        "Acceptance by position",
        "Share of drafts whose token at this position was kept; shorter drafts count as not kept.",
        3.4,
        lambda figure: _paint(figure, lines, looks),
    )


def _paint(figure: Any, lines: Sequence[Line], looks: Looks) -> None:
    axes = figure.add_subplot()
    bare(axes, "y")
    deepest = min(DEEPEST, max(len(line.acceptance) for line in lines))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.set_xlim(1, max(deepest, 2))
    axes.set_xticks(range(1, max(deepest, 2) + 1))
    axes.set_xlabel("position in the draft")
    ends = []
    for line in lines:
        look, shares = look_of(line, looks), line.acceptance[:deepest]
        (curve,) = axes.plot(
            range(1, len(shares) + 1), shares, color=look.tint, linestyle=look.dashes, linewidth=1.7
        )
        mark(curve, look)
        for place, share in enumerate(shares, 1):
            (dot,) = axes.plot(place, share, look.marker, color=look.tint, markersize=4.5)
            mark(dot, look, tip_of(line, f"position {place}: {100 * share:.1f} % kept"))
        ends.append((line, (float(len(shares)), shares[-1])))
    name_ends(axes, ends, looks, 0.065)
