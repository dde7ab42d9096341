"""The progress bar of measurements, and how they end when they are stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from paradecode.cli.console import err

if TYPE_CHECKING:
    from paradecode.engine.cost import CostCurve
    from paradecode.llm import LLM

SOON = 1.0
STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""
Tick = Callable[[int, int], None]
"""Called with what is done and what there is to do."""
T = TypeVar("T")


def open_progress(*more: ProgressColumn) -> Progress:
    """A bar on standard error: what is running, how many of how many, and the time left."""
    counted = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*counted, TimeRemainingColumn(), *more, console=err)


def watched(title: str, work: Callable[[Tick], T]) -> T:
    """What ``work`` returns, under a bar that it moves."""
    with Progress(console=err) as progress:
        task = progress.add_task(title, total=None)
        return work(lambda done, total: progress.update(task, completed=done, total=total))


@contextmanager
def loading_bar() -> Iterator[Tick]:
    """A bar for a model that takes more than a second to load, where a person looks on."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task, begun = progress.add_task("loading the model", visible=False), time.monotonic()
        yield lambda done, total: progress.update(
            task, completed=done, total=total, visible=time.monotonic() > begun + SOON
        )


@contextmanager
def stopping(said: str) -> Iterator[None]:
    """Ctrl-C says this and ends the command with STOPPED."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(said)
        raise typer.Exit(STOPPED) from None


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
