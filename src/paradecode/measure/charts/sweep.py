"""What is left of a method's gain as the batch grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.measure.charts.chart import Chart, charted, mark, name_ends, said, tip_of
from paradecode.measure.charts.looks import Looks, look_of
from paradecode.measure.charts.style import bare, light
from paradecode.measure.sheet import Line, Sheet

MOST = 8


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """None where there was one batch size only."""
    lines = [line for line in charted(sheet.lines, MOST) if line.sweep_over]
    sizes = sorted({size for line in lines for size in line.sweep_over})
    if len(sizes) < 2:
        return None
    return Chart(
        "Gain by batch size",
        f"Throughput over that of {sheet.baseline} at the same size, prompts included; bands are "
        "95 % intervals.",
        3.4,
        lambda figure: _paint(figure, lines, sizes, sheet.baseline, looks),
    )


def _paint(
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
        look = look_of(line, looks)
        own = sorted(line.sweep_over.items())
        places = [sizes.index(size) for size, _ in own]
        band = axes.fill_between(
            places, [each.low for _, each in own], [each.high for _, each in own],
            color=look.tint, alpha=0.1, linewidth=0,
        )  # fmt: skip
        (curve,) = axes.plot(
            places, [each.value for _, each in own], color=look.tint, linestyle=look.dashes,
            linewidth=1.7,
        )  # fmt: skip
        mark(band, look)
        mark(curve, look)
        for place, (size, each) in zip(places, own):
            (dot,) = axes.plot(place, each.value, look.marker, color=look.tint, markersize=5)
            facts = (
                f"batch {size}: {said(each, '×')} {baseline}",
                said(line.sweep.get(size), " tokens/s"),
            )
            mark(dot, look, tip_of(line, *facts))
        ends.append((line, (float(places[-1]), own[-1][1].value)))
    name_ends(axes, ends, looks, 0.065 * (high - low))
