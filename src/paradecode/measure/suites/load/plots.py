"""A picture of a run. matplotlib (extra ``plots``) is imported only when it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from paradecode.measure.plots import FAINT, INK, OWN, PEERS
from paradecode.measure.suites.load.figures import Figure
from paradecode.measure.suites.load.summary import Summary

TINTS = (OWN, *PEERS.values())
Pick = Callable[[Summary], "Figure | None"]


def draw(summaries: Sequence[Summary], subtitle: str, path: Path) -> Path:
    """Throughput, TTFT and TPOT over the load, one line an endpoint; goodput where it was asked."""
    panels: list[tuple[str, Pick, float]] = [
        ("Throughput, tokens/s", lambda s: s.throughput, 1),
        ("Time to first token, ms (p50; p90 dotted)", lambda s: s.first["p50"], 1000),
        ("Time per output token, ms (p50; p90 dotted)", lambda s: s.per_token["p50"], 1000),
    ]
    dotted: list[Pick | None] = [None, lambda s: s.first["p90"], lambda s: s.per_token["p90"]]
    if any(s.goodput is not None for s in summaries):
        panels.append(("Goodput, requests/s", lambda s: _figure(s.goodput), 1))
        dotted.append(None)
    figure = import_module("matplotlib.figure").Figure(
        (4.2 * len(panels), 4.6), layout="constrained"
    )
    loads = list(dict.fromkeys(str(s.load) for s in summaries))
    names = list(dict.fromkeys(s.endpoint for s in summaries))
    for place, (title, pick, scale) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for number, name in enumerate(names):
            own = [s for s in summaries if s.endpoint == name]
            tint = TINTS[number % len(TINTS)]
            _line(axes, loads, own, pick, scale, tint, name)
            second = dotted[place - 1]
            if second is not None:
                known = [(loads.index(str(s.load)), second(s)) for s in own]
                axes.plot(
                    [x for x, f in known if f], [f.value * scale for _, f in known if f],
                    ":", color=tint, linewidth=1.4, zorder=2,
                )  # fmt: skip
        _style(axes, title, loads)
    figure.suptitle(subtitle, x=0.01, ha="left", fontsize=10, color="#5c5f6e")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(names), 5), frameon=False
    )
    figure.savefig(path, dpi=140, facecolor="white")
    return path


def _line(
    axes: Any, loads: list[str], own: Sequence[Summary], pick: Pick, scale: float, tint: str,
    name: str,
) -> None:  # fmt: skip
    known = [(loads.index(str(s.load)), f) for s in own if (f := pick(s)) is not None]
    low = [scale * (f.value - (f.value if f.low is None else f.low)) for _, f in known]
    high = [scale * ((f.value if f.high is None else f.high) - f.value) for _, f in known]
    axes.errorbar(
        [x for x, _ in known], [scale * f.value for _, f in known], yerr=[low, high],
        color=tint, marker="o", markersize=5, linewidth=2, elinewidth=1.2, capsize=3, label=name,
        zorder=3,
    )  # fmt: skip


def _style(axes: Any, title: str, loads: list[str]) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xticks(range(len(loads)), loads, fontsize=9.5)
    axes.set_xlim(-0.3, len(loads) - 0.7)
    axes.set_ylim(bottom=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8, zorder=1)


def _figure(value: float | None) -> Figure | None:
    return None if value is None else Figure(value)
