"""Two pictures of a result: quality against speed, and each task's loss by parallel decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paradecode_lab.measure.charts.frontier import in_percent, name_dots
from paradecode_lab.measure.charts.style import (
    HUES,
    MARKERS,
    SMALL,
    bare,
    headline,
    light,
    new_figure,
    save,
    styled,
    whiskers,
)
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.statistics import Interval, frontier
from paradecode_lab.measure.suites.parallel.methods import REFERENCE, cache_of, read
from paradecode_lab.measure.suites.parallel.summary import MethodSummary, tasks_of
from paradecode_lab.measure.tasks.tasks import BY_NAME

SWEEPS = {"static": {"steps"}, "threshold": {"threshold"}, "factor": {"factor"}}
"""Policy -> the setting that varies in the pictures by task."""
TINTS = tuple(light(name) for name in HUES)

Speed = Callable[[MethodSummary], "Interval | None"]


def draw_all(results: Results, summaries: Sequence[MethodSummary], stem: Path) -> list[Path]:
    """Write ``<stem>-frontier.png`` and ``<stem>-tasks.png``."""
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    figures = {
        "frontier": draw_frontier(results, summaries),
        "tasks": _draw_tasks(tasks, summaries),
    }
    return [
        save(figure, stem.with_name(f"{stem.name}-{name}.png")) for name, figure in figures.items()
    ]


@styled
def draw_frontier(results: Results, summaries: Sequence[MethodSummary]) -> Any:
    """Draw quality over tokens per forward and over tokens per second.

    A family has one colour and marker. The reference is a large diamond; hollow dots have a cache.
    """
    figure = new_figure(13, 6.6)
    left, right = figure.subplots(1, 2, sharey=True)
    looks = {
        name: (TINTS[n % len(TINTS)], MARKERS[n // len(TINTS) % len(MARKERS)])
        for n, name in enumerate(dict.fromkeys(map(_family, summaries)))
    }
    panels: list[tuple[Any, Speed]] = [
        (left, lambda s: s.total.per_forward), (right, lambda s: s.total.per_second),
    ]  # fmt: skip
    for axes, speed in panels:
        _cloud(axes, summaries, looks, speed)
    left.set_xlabel("tokens per forward")
    right.set_xlabel(f"tokens per second, {results.settings['batch']} in a batch")
    left.set_ylabel("exact match, %")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False,
        fontsize=9,
    )  # fmt: skip
    headline(figure, "Quality against speed of canvas decoding")
    threads = results.settings["threads"] or results.machine.cores
    left.set_title(
        f"{results.model}, {len(results.items)} held-out instances, threads: {threads}. "
        "Bars: 95 % intervals. Line: frontier. Hollow: with a cache.",
        loc="left", color=light("soft"),
    )  # fmt: skip
    for axes, speed in panels:
        _name_best(axes, summaries, speed)
    return figure


@styled
def _draw_tasks(tasks: Sequence[str], summaries: Sequence[MethodSummary]) -> Any:
    """Draw a panel for each task: the loss of a fixed schedule and of a threshold as they decide
    more at a time."""
    across = min(5, len(tasks))
    down = -(-len(tasks) // across)
    figure = new_figure(max(7.5, 2.7 * across + 0.6), 2.3 * down + 1.6)
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes, task in zip(grid, tasks):
        for (name, settings), tint in zip(SWEEPS.items(), TINTS):
            found = [s.tasks[task] for s in summaries if _only_sweeps(s, name, settings)]
            curve = [(f.per_deciding.value, f.exact) for f in found if f.per_deciding]
            _curve(axes, tint, name, sorted(curve, key=lambda point: point[0]))
        several = BY_NAME[task].free
        axes.set_title(
            f"{task}{' (several answers)' if several else ''}", loc="left", fontsize=9.5,
            fontweight="bold" if several else "normal", color=light("bad" if several else "ink"),
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens per deciding forward", fontsize=SMALL)
        axes.label_outer()
        axes.set_ylim(-4, 104)
        _bare(axes)
    for axes in grid[len(tasks) :]:
        axes.axis("off")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
        frameon=False,
    )  # fmt: skip
    figure.supylabel("exact match, %", color=light("soft"))
    headline(figure, "Where deciding many tokens at a time breaks the answer")
    return figure


def _family(summary: MethodSummary) -> str:
    return read(summary.method).method.name


def _only_sweeps(summary: MethodSummary, name: str, settings: set[str]) -> bool:
    """Whether the method is ``name`` and differs from its defaults in ``settings`` alone."""
    return _family(summary) == name and read(summary.method).settings.keys() <= settings


def _cloud(
    axes: Any,
    summaries: Sequence[MethodSummary],
    looks: Mapping[str, tuple[str, str]],
    speed: Speed,
) -> None:
    labelled: set[str] = set()
    for summary, across in _known(summaries, speed):
        family, quality = _family(summary), summary.total.exact
        is_reference = summary.method == REFERENCE
        tint, marker = looks[family]
        axes.errorbar(
            across.value, 100 * quality.value,
            xerr=whiskers(across), yerr=whiskers(quality, 100),
            fmt="D" if is_reference else marker, markersize=9 if is_reference else 6,
            color=tint, elinewidth=0.9,
            markerfacecolor=tint if cache_of(summary.method) == "none" else "white",
            zorder=3, label=None if family in labelled else family,
        )  # fmt: skip
        labelled.add(family)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    _bare(axes)


def _name_best(axes: Any, summaries: Sequence[MethodSummary], speed: Speed) -> None:
    """Join and name the dots that no other beats; called last, when all positions are known."""
    known = _known(summaries, speed)
    places = [(across.value, 100 * summary.total.exact.value) for summary, across in known]
    best = frontier(places)
    axes.plot(*zip(*(places[i] for i in best)), color=light("ink"), linewidth=1, zorder=2)
    crosses = [(across, in_percent(summary.total.exact)) for summary, across in known]
    name_dots(axes, [(known[i][0].method, places[i]) for i in best], crosses)


def _known(
    summaries: Sequence[MethodSummary], speed: Speed
) -> list[tuple[MethodSummary, Interval]]:
    return [(each, across) for each in summaries if (across := speed(each)) is not None]


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
