"""Engines side by side: decode speed in all, and by kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paradecode.measure.charts.style import (
    INK,
    OTHER,
    OWN,
    PEERS,
    SOFT,
    bare,
    new_figure,
    save,
    whiskers,
)
from paradecode.measure.results import Results, groups_of
from paradecode.measure.statistics import Interval
from paradecode.measure.summary import EngineSummary
from paradecode.measure.tables import number


def draw_engines(
    results: Results, summaries: Sequence[EngineSummary], baseline: str | None, folder: Path
) -> list[Path]:
    """Write ``speed.png`` (all engines) and ``groups.png`` (each peer's fastest mode)."""
    shown = sorted((s for s in summaries if s.total.decode), key=lambda s: -_value(s.total.decode))
    if not shown:
        return []
    return [
        save(_speed(results, shown, baseline), folder / "speed.png"),
        save(_groups(results, _best_of_each_peer(shown)), folder / "groups.png"),
    ]


def colour(name: str) -> str:
    """One colour a peer; Paradecode's stands out."""
    return OWN if is_own(name) else PEERS.get(name.partition("/")[0], OTHER)


def is_own(name: str) -> bool:
    """Whether an engine is Paradecode with one of its backends."""
    return name.startswith("paradecode")


def _speed(results: Results, shown: Sequence[EngineSummary], baseline: str | None) -> Any:
    figure = new_figure(10, 1.9 + 0.34 * len(shown))
    axes = figure.add_subplot()
    for row, summary in enumerate(shown):
        decode = summary.total.decode
        assert decode is not None
        tint = colour(summary.engine.name)
        if summary.engine.mode == "plain":
            tint = _pale(tint)
        axes.barh(row, decode.value, height=0.68, color=tint, zorder=2)
        axes.errorbar(
            decode.value, row, xerr=whiskers(decode), fmt="none", ecolor=INK, elinewidth=1.2,
            capsize=3, zorder=3,
        )  # fmt: skip
        label = number(decode.value)
        if summary.total.speedup and summary.engine.name != baseline:
            label += f"   {number(summary.total.speedup.value)}x"
        axes.text(decode.high, row, f"  {label}", va="center", fontsize=9.5, color=INK, zorder=4)
    axes.set_yticks(range(len(shown)), [s.engine.name for s in shown], fontsize=9.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, max(s.total.decode.high for s in shown if s.total.decode) * 1.17)
    _title(axes, "Decode speed on CPU, tokens per second",
           f"{results.model}, greedy, {len(results.items)} inputs, {results.machine.cores} cores. "
           "Pale: plain; full: speculative.\nWhiskers: 95 % intervals over prompts."
           + (f" x: times {baseline}." if baseline else ""))  # fmt: skip
    bare(axes, "x")
    for tick, summary in zip(axes.get_yticklabels(), shown):
        if is_own(summary.engine.name):
            tick.set(fontweight="bold", color=OWN)
    return figure


def _groups(results: Results, shown: Sequence[EngineSummary]) -> Any:
    groups = groups_of(results)
    figure = new_figure(10, 2.4 + 0.55 * len(groups))
    axes = figure.add_subplot()
    step = 0.72 / max(len(shown) - 1, 1)
    for place, summary in enumerate(shown):
        offset = (place - (len(shown) - 1) / 2) * step
        tint, plain = colour(summary.engine.name), summary.engine.mode == "plain"
        dots = [(row + offset, summary.groups[group].decode) for row, group in enumerate(groups)]
        known = [(y, found) for y, found in dots if found is not None]
        errors = [whiskers(found) for _, found in known]
        axes.errorbar(
            [found.value for _, found in known], [y for y, _ in known],
            xerr=[[low[0] for low, _ in errors], [high[0] for _, high in errors]],
            fmt="o", markersize=6.5, color=tint, markerfacecolor="white" if plain else tint,
            markeredgewidth=1.6, elinewidth=1.6, zorder=3, label=summary.engine.name,
        )  # fmt: skip
    for row in range(0, len(groups), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f4f5f7", zorder=0)
    axes.set_yticks(range(len(groups)), groups, fontsize=11)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    _title(axes, "Decode speed by kind of task, tokens per second",
           f"{results.model}, greedy. The fastest mode of each engine; hollow: plain decoding.\n"
           "Whiskers: 95 % intervals over prompts.")  # fmt: skip
    bare(axes, "x")
    return figure


def _best_of_each_peer(shown: Sequence[EngineSummary]) -> list[EngineSummary]:
    """The fastest line of each peer (``shown`` is sorted), and Paradecode's own plain one."""
    best: dict[str, EngineSummary] = {}
    for summary in shown:
        own = is_own(summary.engine.name)
        best.setdefault("paradecode" if own else summary.engine.peer, summary)
    plain = {s.engine.reference for s in best.values() if is_own(s.engine.name)}
    return [s for s in shown if s in best.values() or s.engine.name in plain]


def _title(axes: Any, title: str, subtitle: str) -> None:
    axes.set_title(
        title + "\n\n", loc="left", fontsize=15, fontweight="bold", color=INK, linespacing=1.35
    )
    axes.annotate(
        subtitle, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points",
        fontsize=10, color=SOFT, va="bottom", linespacing=1.4,
    )  # fmt: skip


def _pale(tint: str) -> str:
    """Half way to white."""
    channels = [int(tint[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(channel + 255) // 2:02x}" for channel in channels)


def _value(found: Interval | None) -> float:
    return found.value if found else 0.0
