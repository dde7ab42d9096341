"""The progress bars of commands, and how measurements end when they are stopped."""

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

from paradecode.cli.console import STOPPED, err

if TYPE_CHECKING:
    from paradecode.engine.cost import CostCurve
    from paradecode.llm import LLM

SOON = 1.0
Tick = Callable[[int, int], None]
"""Called with the amount that is done, and with the whole amount."""
T = TypeVar("T")


def open_progress(*more: ProgressColumn) -> Progress:
    """Return a bar on standard error with the running part, counts, and the remaining time."""
    counted = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*counted, TimeRemainingColumn(), *more, console=err)


def watched(title: str, work: Callable[[Tick], T]) -> T:
    """Return the result of ``work``, which runs under a progress bar and moves it."""
    with Progress(console=err) as progress:
        task = progress.add_task(title, total=None)
        return work(lambda done, total: progress.update(task, completed=done, total=total))


@contextmanager
def loading_bar() -> Iterator[Tick]:
    """Show a bar for a model that takes over a second to load, if a person sees the terminal."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task, begun = progress.add_task("loading the model", visible=False), time.monotonic()
        yield lambda done, total: progress.update(
            task, completed=done, total=total, visible=time.monotonic() > begun + SOON
        )


@contextmanager
def stopping(said: str) -> Iterator[None]:
    """On Ctrl-C, print a message and end the command with the status STOPPED."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(said)
        raise typer.Exit(STOPPED) from None


def measure_forwards(llm: LLM, progress: Progress) -> CostCurve:
    """Measure the cost of this model's forwards under a bar, and let the engine use the result."""
    from paradecode.core.decoder import TARGET
    from paradecode.engine import cost

    task = progress.add_task("measuring forwards")
    curve = cost.measure(
        llm.backend,
        llm.engine.pools[TARGET].count,
        progress=lambda done, total: progress.update(task, completed=done, total=total),
    )
    llm.engine.load.curve = curve
    return curve
