"""Pictures of a result. matplotlib (extra ``plots``) is imported only when drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from paradecode.measure.plots import FAINT, INK, OWN
from paradecode.measure.statistics import Interval, frontier
from paradecode.measure.suites.parallel.methods import REFERENCE, cache_of, read
from paradecode.measure.suites.parallel.results import Results
from paradecode.measure.suites.parallel.summary import Figures, Summary, tasks_of
from paradecode.measure.tasks.tasks import BY_NAME

COLOURS = ("#30638e", OWN, "#5b8e7d", "#bc8034", "#8e6c8a", "#5fa8d3", "#a44a3f", "#7a9e3b")
MARKERS = ("o", "s", "^", "v")
SUBTITLE = "#5c5f6e"
Cost = Callable[[Figures], Interval | None]


def draw_all(results: Results, summaries: Sequence[Summary], stem: Path) -> list[Path]:
    """Write ``<stem>-frontier.png`` and ``<stem>-tasks.png``."""
    drawn = {"frontier": _frontier(results, summaries), "tasks": _tasks(results, summaries)}
    files = []
    for name, figure in drawn.items():
        files.append(stem.with_name(f"{stem.name}-{name}.png"))
        figure.savefig(files[-1], dpi=160, facecolor="white")
    return files


def _frontier(results: Results, summaries: Sequence[Summary]) -> Any:
    figure = _figure(13, 6.6)
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(read(s.method).method.name for s in summaries))
    looks = {
        name: (COLOURS[n % len(COLOURS)], MARKERS[n // len(COLOURS) % len(MARKERS)])
        for n, name in enumerate(names)
    }
    _cloud(left, summaries, looks, lambda total: total.per_forward)
    _cloud(right, summaries, looks, lambda total: total.per_second)
    left.set_xlabel("tokens per forward", color=INK)
    right.set_xlabel(f"tokens per second, {results.settings['batch']} in a batch", color=INK)
    left.set_ylabel("exact match, %", color=INK)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False,
        fontsize=9,
    )  # fmt: skip
    figure.suptitle(
        "Quality against speed of canvas decoding", x=0.01, ha="left", fontsize=15,
        fontweight="bold", color=INK,
    )  # fmt: skip
    left.set_title(
        f"{results.model}, {len(results.items)} held-out instances, {results.machine.cores} cores. "
        "Bars: 95 % intervals. Line: frontier. Hollow: with a cache.",
        loc="left", fontsize=10, color=SUBTITLE,
    )  # fmt: skip
    return figure


def _cloud(
    axes: Any, summaries: Sequence[Summary], looks: dict[str, tuple[str, str]], cost: Cost
) -> None:
    places: list[tuple[float, float]] = []
    shown: list[str] = []
    labelled: set[str] = set()
    for summary in summaries:
        saved, exact = cost(summary.total), summary.total.exact
        if saved is None:
            continue
        name = read(summary.method).method.name
        tint, marker = looks[name]
        axes.errorbar(
            saved.value, 100 * exact.value, xerr=_bar(saved), yerr=_bar(exact, 100),
            fmt="D" if summary.method == REFERENCE else marker,
            markersize=9 if summary.method == REFERENCE else 6, color=tint, elinewidth=0.9,
            markerfacecolor="white" if cache_of(summary.method) != "none" else tint, zorder=3,
            label=None if name in labelled else name,
        )  # fmt: skip
        labelled.add(name)
        places.append((saved.value, 100 * exact.value))
        shown.append(summary.method)
    best = frontier(places)
    axes.plot(*zip(*(places[i] for i in best)), color=INK, linewidth=1, zorder=2)
    for index in best:
        axes.annotate(
            shown[index], places[index], (5, 6), textcoords="offset points", fontsize=7.5,
            color=INK, zorder=4,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.12)
    _bare(axes)


def _tasks(results: Results, summaries: Sequence[Summary]) -> Any:
    """A panel a task: what a fixed schedule and a threshold lose as they decide more at a time."""
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    across = min(5, len(tasks))
    down = -(-len(tasks) // across)
    figure = _figure(max(7.5, 2.7 * across + 0.6), 2.3 * down + 1.6)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    sweeps = {"static": ("steps",), "threshold": ("threshold",), "factor": ("factor",)}
    for axes, task in zip(grid, tasks):
        for (name, swept), tint in zip(sweeps.items(), COLOURS):
            _sweep(axes, task, tint, name, [s for s in summaries if _sweeps(s, name, swept)])
        free = BY_NAME[task].free
        axes.set_title(
            f"{task}{' (several answers)' if free else ''}", loc="left", fontsize=9.5,
            fontweight="bold" if free else "normal", color=OWN if free else INK,
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens per deciding forward", fontsize=8.5, color=INK)
        axes.label_outer()
        axes.set_ylim(-4, 104)
        _bare(axes)
    for axes in list(grid)[len(tasks) :]:
        axes.axis("off")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
        frameon=False,
    )  # fmt: skip
    figure.supylabel("exact match, %", fontsize=10, color=INK)
    figure.suptitle(
        "Where deciding many tokens at a time breaks the answer", x=0.01, ha="left", fontsize=14,
        fontweight="bold", color=INK,
    )  # fmt: skip
    return figure


def _sweep(axes: Any, task: str, tint: str, name: str, summaries: Sequence[Summary]) -> None:
    found = [summary.tasks[task] for summary in summaries]
    known = [(each.per_deciding.value, each.exact) for each in found if each.per_deciding]
    known.sort(key=lambda entry: entry[0])
    if known:
        axes.plot([x for x, _ in known], [100 * y.value for _, y in known], "o-", color=tint,
                  markersize=4, linewidth=1.4, label=name, zorder=3)  # fmt: skip
        axes.fill_between(
            [x for x, _ in known], [100 * y.low for _, y in known],
            [100 * y.high for _, y in known], color=tint, alpha=0.12, linewidth=0,
        )  # fmt: skip


def _sweeps(summary: Summary, name: str, swept: tuple[str, ...]) -> bool:
    """Whether only the settings ``swept`` differ from the method's defaults."""
    spec = read(summary.method)
    return spec.method.name == name and spec.settings.keys() <= set(swept)


def _figure(width: float, height: float) -> Any:
    return import_module("matplotlib.figure").Figure((width, height), layout="constrained")


def _bar(found: Interval, factor: float = 1.0) -> list[list[float]]:
    return [
        [factor * max(found.value - found.low, 0.0)], [factor * max(found.high - found.value, 0.0)]
    ]  # fmt: skip


def _bare(axes: Any) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors=INK, which="both")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(color=FAINT, linewidth=0.8, zorder=1)
    axes.set_axisbelow(True)
