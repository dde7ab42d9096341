"""Draws quality against speed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paradecode_lab.measure.charts.chart import Chart, Looks, look_of, mark, said, tip_of
from paradecode_lab.measure.charts.style import SMALL, bare, light, whiskers
from paradecode_lab.measure.sheet import Line, Sheet
from paradecode_lab.measure.statistics import Interval, frontier

WIDE = 10.0
"""If the fastest speed is more than this many times the slowest, the axis is logarithmic."""

LEAST = 0.002
"""If the qualities of all lines differ by no more than this, no chart is drawn."""

MOST_LABELS = 16
"""Number of names in a chart, divided among its panels."""


def draw(sheet: Sheet, looks: Looks) -> Chart | None:
    """Return the chart; None if fewer than two lines have a quality, or qualities hardly differ."""
    lines = [line for line in sheet.by_speed() if line.quality is not None]
    qualities = [line.quality.value for line in lines if line.quality]
    if len(lines) < 2 or max(qualities) - min(qualities) <= LEAST:
        return None
    return Chart(
        "Quality against speed",
        f"{sheet.quality_label}. Up and to the right is better; the line joins what nothing beats.",
        4.5,
        lambda figure: _paint(figure, lines, looks),
    )


def _paint(figure: Any, lines: Sequence[Line], looks: Looks) -> None:
    panels = {"tokens per second": [line.speed for line in lines]}
    if all(line.per_forward for line in lines):
        panels = {"tokens per forward": [line.per_forward for line in lines], **panels}
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, across) in zip(row, panels.items()):
        axes.set_xlabel(f"{name} →", loc="right")
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.10g} %")
        _panel(axes, lines, across, looks, MOST_LABELS // len(panels))


def _panel(
    axes: Any, lines: Sequence[Line], across: Sequence[Interval | None], looks: Looks, most: int
) -> None:
    bare(axes)
    pairs = [(speed, line.quality) for speed, line in zip(across, lines) if speed and line.quality]
    _limit(axes, [speed for speed, _ in pairs], [quality for _, quality in pairs])
    low = axes.get_ylim()[0]
    shown = [(speed, _clipped(quality, low)) for speed, quality in pairs]
    for line, (speed, quality), (_, whole) in zip(lines, shown, pairs):
        look, place = look_of(line, looks), (speed.value, quality.value)
        cross = axes.errorbar(*place, xerr=whiskers(speed), yerr=whiskers(quality), fmt="none",
                              ecolor=look.tint, elinewidth=1.1, alpha=0.55)  # fmt: skip
        (dot,) = axes.plot(
            *place, look.marker, color=look.tint, markersize=8, markeredgecolor=look.tint,
            markerfacecolor=light("paper") if line.muted else look.tint,
        )  # fmt: skip
        for bar in cross.lines[2]:
            mark(bar, look)
        facts = said(line.speed, " tokens/s"), f"quality {said(in_percent(whole), ' %')}"
        mark(dot, look, tip_of(line, *facts))
    places = [(speed.value, quality.value) for speed, quality in pairs]
    best = frontier(places)
    axes.plot(*zip(*(places[n] for n in best)), color=light("ink"), linewidth=1, alpha=0.6,
              linestyle="--", zorder=1)  # fmt: skip
    order = [*best, *(n for n in range(len(lines)) if n not in best)][:most]
    labelled = [(lines[n], places[n]) for n in order]
    texts = name_dots(axes, [(line.name, place) for line, place in labelled], shown)
    for text, (line, _) in zip(texts, labelled):
        if text is not None:
            mark(text, look_of(line, looks))


def in_percent(quality: Interval) -> Interval:
    """Return the interval in percent."""
    return Interval(100 * quality.value, 100 * quality.low, 100 * quality.high)


def _clipped(quality: Interval, low: float) -> Interval:
    return Interval(quality.value, max(quality.low, low), quality.high)


def _limit(axes: Any, speeds: Sequence[Interval], qualities: Sequence[Interval]) -> None:
    slow, fast = min(s.low for s in speeds), max(s.high for s in speeds)
    if slow > 0 and fast / slow > WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(slow / 1.2, fast * 1.2)
    else:
        axes.set_xlim(0, fast * 1.04)
    worst = min(max(q.low, q.value - 0.15) for q in qualities)
    top = max(q.high for q in qualities)
    low = max(0.0, min(worst - 0.05 * (top - worst), top - 0.1))
    axes.set_ylim(low, top + 0.04 * (top - low))


def name_dots(
    axes: Any,
    named: Sequence[tuple[str, tuple[float, float]]],
    crosses: Sequence[tuple[Interval, Interval]],
) -> list[Any]:
    """Write names beside their points where there is room; the other names show on hover.

    Args:
        named: each name with its point; the first names choose their places first.
        crosses: intervals of all points along both axes, which no name may cover.

    Returns:
        The texts; None in place of a name that found no room.
    """
    Bbox = import_module("matplotlib.transforms").Bbox
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()  # Places are known only after the axes have got their sizes.
    frame, pixels = axes.get_window_extent(), figure.dpi / 72
    taken = [box for across, up in crosses for box in _boxes(axes, across, up)]
    texts = []
    for name, place in named:
        sample = axes.text(0, 0, name, fontsize=SMALL)
        size = sample.get_window_extent()
        sample.remove()
        x, y = axes.transData.transform(place)
        for dx, dy, side in _spots():
            left = x + pixels * dx - {"left": 0, "center": 0.5, "right": 1}[side] * size.width
            middle = y + pixels * dy
            box = Bbox.from_bounds(left, middle - size.height / 2, size.width, size.height)
            inside = (
                frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 < box.y1 < frame.y1
            )
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                texts.append(_name(axes, name, place, (dx, dy), side))
                break
        else:
            texts.append(None)
    return texts


def _boxes(axes: Any, across: Interval, up: Interval) -> list[Any]:
    """Return the boxes that a point and its whiskers cover, in pixels."""
    Bbox = import_module("matplotlib.transforms").Bbox
    x, y = axes.transData.transform((across.value, up.value))
    left, bottom = axes.transData.transform((across.low, up.low))
    right, top = axes.transData.transform((across.high, up.high))
    return [
        Bbox([[x - 6, y - 6], [x + 6, y + 6]]),
        Bbox([[left, y - 1], [right, y + 1]]),
        Bbox([[x - 1, bottom], [x + 1, top]]),
    ]


def _name(
    axes: Any, name: str, place: tuple[float, float], by: tuple[float, float], side: str
) -> Any:
    line = {"arrowstyle": "-", "color": light("soft"), "linewidth": 0.6, "shrinkB": 4}
    return axes.annotate(
        name, place, by, textcoords="offset points", fontsize=SMALL, ha=side, va="center",
        arrowprops=line if abs(by[1]) > 16 else None,
        bbox={"boxstyle": "square,pad=0.1", "linewidth": 0, "alpha": 0.75,
              "facecolor": light("paper")},
    )  # fmt: skip


def _spots() -> list[tuple[float, float, str]]:
    """Return offsets of a name from its point, in 1/72 inch, and the alignment of the name.

    The best come first: beside the point, above, below, and then further away.
    """
    near = [(8.0, 0.0, "left"), (-8.0, 0.0, "right"), (0.0, 12.0, "center"), (0.0, -12.0, "center")]
    far = [
        (dx, sign * 12.0 * step, "center")
        for step in range(2, 9)
        for sign in (1, -1)
        for dx in (0.0, 27.0, -27.0, 54.0, -54.0)
    ]
    return [*near, *far]
