"""Shows a load run as tables, as a JSON file and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paradecode_lab.measure.charts.style import (
    HUES,
    bare,
    can_draw,
    light,
    new_figure,
    save,
    styled,
    whiskers,
)
from paradecode_lab.measure.result_files import results_to_json, write_results
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.statistics import Estimate
from paradecode_lab.measure.suites.load.summary import LoadSummary, Percentiles
from paradecode_lab.measure.tables import Column, ends, number

BUSY, LATE = 0.25, 0.1
"""The client disturbs the measurement above this share of a core, or this delay in seconds."""

Pick = Callable[[LoadSummary], "Estimate | None"]
PANELS: tuple[tuple[str, float, Pick, Pick], ...] = (
    ("Throughput, tokens/s", 1, lambda s: s.throughput, lambda s: None),
    ("Time to first token, ms (p50; p90 dotted)", 1000,
     lambda s: s.first["p50"], lambda s: s.first["p90"]),
    ("Time per output token, ms (p50; p90 dotted)", 1000,
     lambda s: s.per_token["p50"], lambda s: s.per_token["p90"]),
    ("Goodput, requests/s", 1,
     lambda s: None if s.goodput is None else Estimate(s.goodput), lambda s: None),
)  # fmt: skip
"""The panels of the picture.

Each has a title, the factor to its unit, the figure of the solid line, and that of a dotted line
without whiskers.
"""


def document(results: Results, summaries: Sequence[LoadSummary]) -> dict[str, Any]:
    """Return machine, settings, figures and every request as JSON, for programs."""
    return results_to_json(results, _aggregates(summaries))


def write_report(results: Results, summaries: Sequence[LoadSummary], path: Path) -> list[Path]:
    """Write the JSON file and, if matplotlib is installed, a picture next to it."""
    write_results(results, path, _aggregates(summaries))
    if not can_draw():
        return [path]
    figure = _draw(summaries, headline(results))
    return [path, save(figure, path.with_suffix(".png"), dpi=140)]


def _aggregates(summaries: Sequence[LoadSummary]) -> dict[str, Any]:
    return {"figures": list(map(asdict, summaries))}


@styled
def _draw(summaries: Sequence[LoadSummary], subtitle: str) -> Any:
    """Draw a panel for each figure against the load, with a line for each endpoint."""
    panels = PANELS if any(s.goodput is not None for s in summaries) else PANELS[:-1]
    loads = list(dict.fromkeys(s.load for s in summaries))
    names = list(dict.fromkeys(s.endpoint for s in summaries))
    figure = new_figure(4.2 * len(panels), 4.6)
    for place, (title, scale, pick, pick_dotted) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for index, name in enumerate(names):
            own, tint = [s for s in summaries if s.endpoint == name], HUES[index % len(HUES)]
            places, found = _known(map(pick, own))
            bars = [whiskers(each, scale) for each in found]
            axes.errorbar(
                places, [scale * each.value for each in found],
                yerr=[[low[0] for low, _ in bars], [high[0] for _, high in bars]],
                color=light(tint), marker="o", markersize=5, linewidth=2, elinewidth=1.2,
                capsize=3, label=name, zorder=3,
            )  # fmt: skip
            places, found = _known(map(pick_dotted, own))
            values = [scale * each.value for each in found]
            axes.plot(places, values, ":", color=light(tint), linewidth=1.4, zorder=2)
        bare(axes, "y")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xticks(range(len(loads)), loads)
        axes.set_xlim(-0.3, len(loads) - 0.7)
        axes.set_ylim(bottom=0)
    figure.suptitle(subtitle, x=0.01, ha="left", color=light("soft"))
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center",
        ncols=min(len(names), 5), frameon=False,
    )  # fmt: skip
    return figure


def _known(values: Iterable[Estimate | None]) -> tuple[list[int], list[Estimate]]:
    """Return the indices of the values that are not None, and these values."""
    known = [(x, found) for x, found in enumerate(values) if found is not None]
    return [x for x, _ in known], [found for _, found in known]


def headline(results: Results) -> str:
    """Return one line about the conditions under which the figures were measured."""
    settings = results.settings
    counted = {
        "usage": "tokens as each server counts them",
        "tokenizer": "tokens of one tokenizer for all",
    }[settings["count"]]
    return (
        f"{results.model}; {settings['requests']} requests x {settings['rounds']} rounds; "
        f"{counted}; {results.machine.cores} cores. Whiskers: 95 % intervals."
    )


def failures(summaries: Sequence[LoadSummary]) -> list[str]:
    """Return one line for each kind of error of each endpoint."""
    return [
        f"{s.endpoint}, {s.load}: {count} of {s.requests} failed ({kind})"
        for s in summaries
        for kind, count in s.errors.items()
    ]


def warnings(summaries: Sequence[LoadSummary]) -> list[str]:
    """Return a warning for each measurement that the client itself disturbed."""
    said = []
    for s in summaries:
        if s.client > BUSY:
            said.append(f"{s.endpoint}, {s.load}: the client used {100 * s.client:.0f} % of a core")
        if s.late > LATE:
            said.append(f"{s.endpoint}, {s.load}: a request was sent {s.late:.2f} s late")
    return said


THROUGHPUT: tuple[Column[LoadSummary], ...] = (
    Column("load", lambda s: s.load),
    Column("endpoint", lambda s: s.endpoint),
    Column("failed", lambda s: f"{sum(s.errors.values())}/{s.requests}"),
    Column("tokens/s", lambda s: ends(s.throughput)),
    Column("x", lambda s: ends(s.speedup)),
    Column("goodput/s", lambda s: _goodput(s)),
)


@dataclass(frozen=True)
class Latency:
    """One row of the table of latencies.

    Only the first row of a summary has ``load`` and ``endpoint``.
    """

    load: str
    endpoint: str
    name: str
    found: Percentiles
    scale: float


LATENCY: tuple[Column[Latency], ...] = (
    Column("load", lambda line: line.load),
    Column("endpoint", lambda line: line.endpoint),
    Column("", lambda line: line.name),
    Column("p50", lambda line: ends(line.found["p50"], line.scale)),
    Column("p90", lambda line: ends(line.found["p90"], line.scale)),
    Column("p99", lambda line: ends(line.found["p99"], line.scale)),
)


def latencies(summaries: Sequence[LoadSummary]) -> Iterator[Latency]:
    """Yield the rows of the table of latencies, three for each summary."""
    for s in summaries:
        yield Latency(s.load, s.endpoint, "TTFT, ms", s.first, 1000)
        yield Latency("", "", "TPOT, ms", s.per_token, 1000)
        yield Latency("", "", "whole, s", s.whole, 1)


def _goodput(summary: LoadSummary) -> str:
    """Return the good requests a second, and their share of all requests."""
    if summary.good is None or summary.goodput is None:
        return ""
    return f"{number(summary.goodput)} ({100 * summary.good.value:.0f} %)"
