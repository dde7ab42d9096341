"""A run as files and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.measure.charts.load import LoadPanel, draw_load
from paradecode.measure.charts.style import can_draw, save
from paradecode.measure.result_files import write_lines
from paradecode.measure.statistics import Estimate
from paradecode.measure.suites.load.results import LoadResults, as_json
from paradecode.measure.suites.load.summary import LoadSummary

BUSY, LATE = 0.25, 0.1
"""Share of a core, and seconds, above which the client disturbs what it measures."""


def document(results: LoadResults, summaries: Sequence[LoadSummary]) -> dict[str, Any]:
    """Machine, settings, figures and every request, for programs."""
    return as_json(results, [{**asdict(s), "load": str(s.load)} for s in summaries])


def write_report(results: LoadResults, summaries: Sequence[LoadSummary], path: Path) -> list[Path]:
    """Write the JSON file and, where matplotlib is there, a picture beside it."""
    head = document(results, summaries)
    write_lines(path, head, {"phases": head.pop("phases")})
    if not can_draw():
        return [path]
    loads = list(dict.fromkeys(str(s.load) for s in summaries))
    figure = draw_load(_panels(summaries), loads, headline(results))
    return [path, save(figure, path.with_suffix(".png"), dpi=140)]


def _panels(summaries: Sequence[LoadSummary]) -> list[LoadPanel]:
    """Throughput, TTFT and TPOT over the load; goodput where it was asked."""

    def lines(pick: Callable[[LoadSummary], Estimate | None]) -> dict[str, list[Estimate | None]]:
        found: dict[str, list[Estimate | None]] = {}
        for summary in summaries:
            found.setdefault(summary.endpoint, []).append(pick(summary))
        return found

    panels = [
        LoadPanel("Throughput, tokens/s", lines(lambda s: s.throughput), {}),
        LoadPanel("Time to first token, ms (p50; p90 dotted)",
                  lines(lambda s: s.first["p50"]), lines(lambda s: s.first["p90"]), 1000),
        LoadPanel("Time per output token, ms (p50; p90 dotted)",
                  lines(lambda s: s.per_token["p50"]), lines(lambda s: s.per_token["p90"]), 1000),
    ]  # fmt: skip
    if any(s.goodput is not None for s in summaries):
        goodput = lines(lambda s: None if s.goodput is None else Estimate(s.goodput))
        panels.append(LoadPanel("Goodput, requests/s", goodput, {}))
    return panels


def headline(results: LoadResults) -> str:
    """What the figures are about, in one line."""
    settings = results.settings
    models = dict.fromkeys(str(endpoint["model"]) for endpoint in results.endpoints)
    counted = {
        "usage": "tokens as each server counts them",
        "tokenizer": "tokens of one tokenizer for all",
    }[settings["count"]]
    return (
        f"{', '.join(models)}; {settings['requests']} requests x {settings['rounds']} rounds; "
        f"{counted}; {results.machine.cores} cores. Whiskers: 95 % intervals."
    )


def failures(summaries: Sequence[LoadSummary]) -> list[str]:
    """One line for each kind of error of each endpoint."""
    return [
        f"{s.endpoint}, {s.load}: {count} of {s.requests} failed ({kind})"
        for s in summaries
        for kind, count in s.errors.items()
    ]


def warnings(summaries: Sequence[LoadSummary]) -> list[str]:
    """Where the client itself was in the way."""
    said = []
    for s in summaries:
        if s.client > BUSY:
            said.append(f"{s.endpoint}, {s.load}: the client used {100 * s.client:.0f} % of a core")
        if s.late > LATE:
            said.append(f"{s.endpoint}, {s.load}: a request was sent {s.late:.2f} s late")
    return said
