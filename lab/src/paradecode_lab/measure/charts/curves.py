"""Draws curves: acceptance by draft position, and the speed-up by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode_lab.measure.charts.chart import (
    Chart,
    Looks,
    charted,
    look_of,
    mark,
    name_ends,
    said,
    tip_of,
)
from paradecode_lab.measure.charts.style import bare, light
from paradecode_lab.measure.sheet import Line, Sheet

MOST, DEEPEST = 8, 16
"""The most methods in a chart, and the most draft positions in it."""
GAP = 0.065
"""The least distance between two names at the ends of curves, as a share of the axis."""


def acceptance(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return a chart of the share of accepted drafts by position; None if no method drafts."""
    lines = [line for line in charted(sheet.lines, MOST + 1) if line.acceptance]
    if not lines:
        return None
    return Chart(
        "Acceptance by position",
        "Share of drafts whose token at this position was kept; shorter drafts count as not kept.",
        3.4,
        lambda figure: _paint_acceptance(figure, lines, looks),
    )


def _paint_acceptance(figure: Any, lines: Sequence[Line], looks: Looks) -> None:
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
        shares = line.acceptance[:deepest]
        tips = [
            tip_of(line, f"position {place}: {100 * share:.1f} % kept")
            for place, share in enumerate(shares, 1)
        ]
        _curve(axes, line, looks, range(1, len(shares) + 1), shares, tips, 4.5)
        ends.append((line, (float(len(shares)), shares[-1])))
    name_ends(axes, ends, looks, GAP)


def sweep(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return a chart of the gain by batch size; None if only one batch size was measured."""
    lines = [line for line in charted(sheet.lines, MOST) if line.sweep_over]
    sizes = sorted({size for line in lines for size in line.sweep_over})
    if len(sizes) < 2:
        return None
    return Chart(
        "Gain by batch size",
        f"Throughput over that of {sheet.baseline} at the same size, prompts included; bands are "
        "95 % intervals.",
        3.4,
        lambda figure: _paint_sweep(figure, lines, sizes, sheet.baseline, looks),
    )


def _paint_sweep(
    figure: Any, lines: Sequence[Line], sizes: Sequence[int], baseline: str, looks: Looks
) -> None:
    axes = figure.add_subplot()
    bare(axes, "y")
    found = [each for line in lines for each in line.sweep_over.values()]
    low = min(0.8, min(each.low for each in found))
    high = max(1.2, max(each.high for each in found))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter("{x:g}×")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.15, len(sizes) - 0.9)
    axes.set_xlabel("requests at a time")
    axes.axhline(1, color=light("soft"), linewidth=1.1)
    ends = []
    for line in lines:
        look, own = look_of(line, looks), sorted(line.sweep_over.items())
        places = [sizes.index(size) for size, _ in own]
        band = axes.fill_between(
            places, [each.low for _, each in own], [each.high for _, each in own],
            color=look.tint, alpha=0.1, linewidth=0,
        )  # fmt: skip
        mark(band, look)
        tips = [
            tip_of(line, f"batch {size}: {said(each, '×')} {baseline}",
                   said(line.sweep.get(size), " tokens/s"))
            for size, each in own
        ]  # fmt: skip
        _curve(axes, line, looks, places, [each.value for _, each in own], tips, 5)
        ends.append((line, (float(places[-1]), own[-1][1].value)))
    name_ends(axes, ends, looks, GAP * (high - low))


def _curve(
    axes: Any,
    line: Line,
    looks: Looks,
    places: Sequence[int],
    values: Sequence[float],
    tips: Sequence[str],
    size: float,
) -> None:
    """Draw a curve with a dot at each value, and a hover text on each dot."""
    look = look_of(line, looks)
    (curve,) = axes.plot(places, values, color=look.tint, linestyle=look.dashes, linewidth=1.7)
    mark(curve, look)
    for place, value, tip in zip(places, values, tips):
        (dot,) = axes.plot(place, value, look.marker, color=look.tint, markersize=size)
        mark(dot, look, tip)
