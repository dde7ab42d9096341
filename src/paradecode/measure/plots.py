"""Pictures of results. matplotlib (extra ``plots``) is imported only here, and only when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from paradecode.measure.markdown import number
from paradecode.measure.results import Results
from paradecode.measure.statistics import Interval
from paradecode.measure.summary import Summary, groups_of

OWN = "#d1495b"
PEERS = {
    "llama-cpp": "#30638e", "xllamacpp": "#5fa8d3", "openvino": "#5b8e7d", "vllm": "#8e6c8a",
    "transformers": "#bc8034",
}  # fmt: skip
OTHER = "#6c757d"
INK, FAINT = "#22223b", "#d9dbe1"


def draw_all(
    results: Results, summaries: Sequence[Summary], baseline: str | None, folder: Path
) -> list[Path]:
    """Write ``speed.png`` (all engines) and ``groups.png`` (each peer's fastest mode)."""
    shown = sorted((s for s in summaries if s.total.decode), key=lambda s: -_value(s.total.decode))
    if not shown:
        return []
    return [
        _save(_speed(results, shown, baseline), folder / "speed.png"),
        _save(_groups(results, _best_of_each_peer(shown)), folder / "groups.png"),
    ]


def colour(name: str) -> str:
    """One colour a peer; Paradecode's stands out."""
    peer = name.partition("/")[0]
    return OWN if is_own(name) else PEERS.get(peer, OTHER)


def is_own(name: str) -> bool:
    """Whether an engine is Paradecode with one of its backends."""
    return name.startswith("paradecode")


def _speed(results: Results, shown: Sequence[Summary], baseline: str | None) -> Any:
    figure = _figure(10, 1.9 + 0.34 * len(shown))
    axes = figure.add_subplot()
    for row, summary in enumerate(shown):
        decode = summary.total.decode
        assert decode is not None
        tint = colour(summary.engine.name)
        if summary.engine.mode == "plain":
            tint = _pale(tint)
        axes.barh(row, decode.value, height=0.68, color=tint, zorder=2)
        axes.errorbar(
            decode.value, row, xerr=_error(decode), fmt="none", ecolor=INK, elinewidth=1.2,
            capsize=3, zorder=3,
        )  # fmt: skip
        label = number(decode.value)
        if summary.total.speedup and summary.engine.name != baseline:
            label += f"   {number(summary.total.speedup.value)}x"
        axes.text(decode.high, row, f"  {label}", va="center", fontsize=9.5, color=INK, zorder=4)
    axes.set_yticks(range(len(shown)), [s.engine.name for s in shown], fontsize=9.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, max(_high(s.total.decode) for s in shown) * 1.17)
    _title(axes, "Decode speed on CPU, tokens per second",
           f"{results.model}, greedy, {len(results.items)} inputs, {results.machine.cores} cores. "
           "Pale: plain; full: speculative.\nWhiskers: 95 % intervals over prompts."
           + (f" x: times {baseline}." if baseline else ""))  # fmt: skip
    _bare(axes)
    for tick, summary in zip(axes.get_yticklabels(), shown):
        if is_own(summary.engine.name):
            tick.set(fontweight="bold", color=OWN)
    return figure


def _groups(results: Results, shown: Sequence[Summary]) -> Any:
    groups = groups_of(results)
    figure = _figure(10, 2.4 + 0.55 * len(groups))
    axes = figure.add_subplot()
    step = 0.72 / max(len(shown) - 1, 1)
    for place, summary in enumerate(shown):
        offset = (place - (len(shown) - 1) / 2) * step
        tint, plain = colour(summary.engine.name), summary.engine.mode == "plain"
        dots = [(row + offset, summary.groups[group].decode) for row, group in enumerate(groups)]
        known = [(y, found) for y, found in dots if found is not None]
        errors = [_error(found) for _, found in known]
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
    _bare(axes)
    return figure


def _best_of_each_peer(shown: Sequence[Summary]) -> list[Summary]:
    """The fastest line of each peer (``shown`` is sorted), and Paradecode's own plain one."""
    best: dict[str, Summary] = {}
    for summary in shown:
        own = is_own(summary.engine.name)
        best.setdefault("paradecode" if own else summary.engine.peer, summary)
    plain = {s.engine.reference for s in best.values() if is_own(s.engine.name)}
    return [s for s in shown if s in best.values() or s.engine.name in plain]


def _figure(width: float, height: float) -> Any:
    return import_module("matplotlib.figure").Figure((width, height), layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=160, facecolor="white")
    return path


def _title(axes: Any, title: str, subtitle: str) -> None:
    axes.set_title(
        title + "\n\n", loc="left", fontsize=15, fontweight="bold", color=INK, linespacing=1.35
    )
    axes.annotate(
        subtitle, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points",
        fontsize=10, color="#5c5f6e", va="bottom", linespacing=1.4,
    )  # fmt: skip


def _pale(tint: str) -> str:
    """Half way to white."""
    channels = [int(tint[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(channel + 255) // 2:02x}" for channel in channels)


def _bare(axes: Any) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.8, zorder=1)
    axes.set_axisbelow(True)


def _error(found: Interval) -> list[list[float]]:
    return [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]]


def _value(found: Interval | None) -> float:
    return found.value if found else 0.0


def _high(found: Interval | None) -> float:
    return found.high if found else 0.0
