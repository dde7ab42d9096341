"""Servers under load: a panel a figure, a line an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.measure.charts.style import HUES, bare, light, new_figure, styled, whiskers
from paradecode.measure.statistics import Estimate

TINTS = tuple(light(name) for name in HUES)


@dataclass(frozen=True)
class LoadPanel:
    """One figure over the load.

    Attributes:
        title: what it is, with its unit.
        lines: endpoint -> one value a load, None where there is none.
        dotted: the same of a second figure, drawn dotted and without whiskers.
        scale: factor from seconds to the unit shown.
    """

    title: str
    lines: Mapping[str, Sequence[Estimate | None]]
    dotted: Mapping[str, Sequence[Estimate | None]]
    scale: float = 1.0


@styled
def draw_load(panels: Sequence[LoadPanel], loads: Sequence[str], subtitle: str) -> Any:
    """All panels side by side; ``loads`` are the names on the horizontal axes."""
    figure = new_figure(4.2 * len(panels), 4.6)
    names = list(panels[0].lines)
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for number, name in enumerate(names):
            tint = TINTS[number % len(TINTS)]
            _line(axes, panel.lines[name], panel.scale, tint, name)
            known = [(x, found) for x, found in enumerate(panel.dotted.get(name, ())) if found]
            axes.plot(
                [x for x, _ in known], [panel.scale * found.value for _, found in known],
                ":", color=tint, linewidth=1.4, zorder=2,
            )  # fmt: skip
        bare(axes, "y")
        axes.set_title(panel.title, loc="left", fontweight="bold")
        axes.set_xticks(range(len(loads)), loads)
        axes.set_xlim(-0.3, len(loads) - 0.7)
        axes.set_ylim(bottom=0)
    figure.suptitle(subtitle, x=0.01, ha="left", color=light("soft"))
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center",
        ncols=min(len(names), 5), frameon=False,
    )  # fmt: skip
    return figure


def _line(axes: Any, values: Sequence[Estimate | None], scale: float, tint: str, name: str) -> None:
    known = [(x, found) for x, found in enumerate(values) if found is not None]
    bars = [whiskers(found, scale) for _, found in known]
    axes.errorbar(
        [x for x, _ in known], [scale * found.value for _, found in known],
        yerr=[[low[0] for low, _ in bars], [high[0] for _, high in bars]],
        color=tint, marker="o", markersize=5, linewidth=2, elinewidth=1.2, capsize=3, label=name,
        zorder=3,
    )  # fmt: skip
