"""The progress bar of measurements, and how they end when they are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paradecode.cli.console import err

if TYPE_CHECKING:
    from paradecode.engine.cost import CostCurve
    from paradecode.llm import LLM

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""


def open_progress() -> Progress:
    """A bar on standard error: what is running, how many of how many, and the time left."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=err,
    )  # fmt: skip


def measure_forwards(llm: LLM, progress: Progress) -> CostCurve:
    """What a forward of this model costs here, measured under a bar; the engine uses it."""
    from paradecode.core.request import TARGET
    from paradecode.engine import cost

    task = progress.add_task("measuring forwards")
    curve = cost.measure(
        llm.backend,
        llm.engine.pools[TARGET].count,
        progress=lambda done, total: progress.update(task, completed=done, total=total),
    )
    llm.engine.load.curve = curve
    return curve
