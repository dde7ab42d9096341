"""The two pictures of a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paradecode.measure.charts.canvas import FrontierDot, TaskPanel, draw_frontier, draw_tasks
from paradecode.measure.charts.style import save
from paradecode.measure.results import Results
from paradecode.measure.suites.parallel.methods import REFERENCE, cache_of, read
from paradecode.measure.suites.parallel.summary import MethodSummary, tasks_of
from paradecode.measure.tasks.tasks import BY_NAME

SWEEPS = {"static": {"steps"}, "threshold": {"threshold"}, "factor": {"factor"}}
"""Policy -> the setting that is swept in the pictures by task."""


def draw_all(results: Results, summaries: Sequence[MethodSummary], stem: Path) -> list[Path]:
    """Write ``<stem>-frontier.png`` and ``<stem>-tasks.png``."""
    subtitle = (
        f"{results.model}, {len(results.items)} held-out instances, {results.machine.cores} cores."
    )
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    figures = {
        "frontier": draw_frontier(list(map(_dot, summaries)), subtitle, results.settings["batch"]),
        "tasks": draw_tasks([_panel(task, summaries) for task in tasks]),
    }
    return [
        save(figure, stem.with_name(f"{stem.name}-{name}.png")) for name, figure in figures.items()
    ]


def _dot(summary: MethodSummary) -> FrontierDot:
    total = summary.total
    return FrontierDot(
        name=summary.method,
        family=read(summary.method).method.name,
        quality=total.exact,
        per_forward=total.per_forward,
        per_second=total.per_second,
        is_reference=summary.method == REFERENCE,
        is_cached=cache_of(summary.method) != "none",
    )


def _panel(task: str, summaries: Sequence[MethodSummary]) -> TaskPanel:
    curves = {}
    for name, settings in SWEEPS.items():
        found = [s.tasks[task] for s in summaries if _only_sweeps(s, name, settings)]
        curves[name] = [(f.per_deciding.value, f.exact) for f in found if f.per_deciding]
    return TaskPanel(task, BY_NAME[task].free, curves)


def _only_sweeps(summary: MethodSummary, name: str, settings: set[str]) -> bool:
    """Whether the method is ``name`` and differs from its defaults in ``settings`` alone."""
    spec = read(summary.method)
    return spec.method.name == name and spec.settings.keys() <= settings
