"""Canvas decoding: quality against speed, and what each task loses to parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.measure.charts.frontier import in_percent, name_dots
from paradecode.measure.charts.style import (
    HUES,
    MARKERS,
    SMALL,
    bare,
    headline,
    light,
    new_figure,
    styled,
    whiskers,
)
from paradecode.measure.statistics import Interval, frontier

TINTS = tuple(light(name) for name in HUES)


@dataclass(frozen=True)
class FrontierDot:
    """One method in both panels.

    Attributes:
        name, family: dots of a family have one colour and marker.
        quality: from 0 to 1.
        per_forward, per_second: tokens; None where unknown.
        is_reference: drawn as a large diamond.
        is_cached: drawn hollow.
    """

    name: str
    family: str
    quality: Interval
    per_forward: Interval | None
    per_second: Interval | None
    is_reference: bool
    is_cached: bool


Speed = Callable[[FrontierDot], "Interval | None"]


@dataclass(frozen=True)
class TaskPanel:
    """One task: policy -> (tokens per deciding forward, exact match), in any order."""

    task: str
    several_answers: bool
    curves: Mapping[str, Sequence[tuple[float, Interval]]]


@styled
def draw_frontier(dots: Sequence[FrontierDot], subtitle: str, batch: int) -> Any:
    """Quality over tokens per forward and over tokens per second."""
    figure = new_figure(13, 6.6)
    left, right = figure.subplots(1, 2, sharey=True)
    families = list(dict.fromkeys(dot.family for dot in dots))
    looks = {
        name: (TINTS[n % len(TINTS)], MARKERS[n // len(TINTS) % len(MARKERS)])
        for n, name in enumerate(families)
    }
    panels: list[tuple[Any, Speed]] = [
        (left, lambda dot: dot.per_forward), (right, lambda dot: dot.per_second),
    ]  # fmt: skip
    for axes, speed in panels:
        _cloud(axes, dots, looks, speed)
    left.set_xlabel("tokens per forward")
    right.set_xlabel(f"tokens per second, {batch} in a batch")
    left.set_ylabel("exact match, %")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False,
        fontsize=9,
    )  # fmt: skip
    headline(figure, "Quality against speed of canvas decoding")
    left.set_title(
        f"{subtitle} Bars: 95 % intervals. Line: frontier. Hollow: with a cache.",
        loc="left", color=light("soft"),
    )  # fmt: skip
    for axes, speed in panels:
        _name_best(axes, dots, speed)
    return figure


@styled
def draw_tasks(panels: Sequence[TaskPanel]) -> Any:
    """A panel a task: what a fixed schedule and a threshold lose as they decide more at a time."""
    across = min(5, len(panels))
    down = -(-len(panels) // across)
    figure = new_figure(max(7.5, 2.7 * across + 0.6), 2.3 * down + 1.6)
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, panel in zip(grid, panels):
        for (name, curve), tint in zip(panel.curves.items(), TINTS):
            _curve(axes, tint, name, sorted(curve, key=lambda point: point[0]))
        several = panel.several_answers
        axes.set_title(
            f"{panel.task}{' (several answers)' if several else ''}", loc="left", fontsize=9.5,
            fontweight="bold" if several else "normal", color=light("bad" if several else "ink"),
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens per deciding forward", fontsize=SMALL)
        axes.label_outer()
        axes.set_ylim(-4, 104)
        _bare(axes)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
        frameon=False,
    )  # fmt: skip
    figure.supylabel("exact match, %", color=light("soft"))
    headline(figure, "Where deciding many tokens at a time breaks the answer")
    return figure


def _cloud(
    axes: Any,
    dots: Sequence[FrontierDot],
    looks: Mapping[str, tuple[str, str]],
    speed: Speed,
) -> None:
    labelled: set[str] = set()
    for dot, across in _known(dots, speed):
        tint, marker = looks[dot.family]
        axes.errorbar(
            across.value, 100 * dot.quality.value,
            xerr=whiskers(across), yerr=whiskers(dot.quality, 100),
            fmt="D" if dot.is_reference else marker, markersize=9 if dot.is_reference else 6,
            color=tint, elinewidth=0.9, markerfacecolor="white" if dot.is_cached else tint,
            zorder=3, label=None if dot.family in labelled else dot.family,
        )  # fmt: skip
        labelled.add(dot.family)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    _bare(axes)


def _name_best(axes: Any, dots: Sequence[FrontierDot], speed: Speed) -> None:
    """Join and name the dots that no other beats; called last, when all places are known."""
    known = _known(dots, speed)
    places = [(across.value, 100 * dot.quality.value) for dot, across in known]
    best = frontier(places)
    axes.plot(*zip(*(places[i] for i in best)), color=light("ink"), linewidth=1, zorder=2)
    crosses = [(across, in_percent(dot.quality)) for dot, across in known]
    name_dots(axes, [(known[i][0].name, places[i]) for i in best], crosses)


def _known(dots: Sequence[FrontierDot], speed: Speed) -> list[tuple[FrontierDot, Interval]]:
    return [(dot, across) for dot in dots if (across := speed(dot)) is not None]


def _curve(axes: Any, tint: str, name: str, curve: Sequence[tuple[float, Interval]]) -> None:
    if curve:
        across = [x for x, _ in curve]
        axes.plot(across, [100 * y.value for _, y in curve], "o-", color=tint, markersize=4,
                  linewidth=1.4, label=name, zorder=3)  # fmt: skip
        axes.fill_between(
            across, [100 * y.low for _, y in curve], [100 * y.high for _, y in curve],
            color=tint, alpha=0.12, linewidth=0,
        )  # fmt: skip


def _bare(axes: Any) -> None:
    axes.xaxis.set_major_formatter("{x:g}")
    bare(axes)
