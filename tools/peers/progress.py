"""Shows how far a long run is and how long it still takes, in a terminal and in a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar


class Steps:
    """Counts steps: a bar in a terminal, and otherwise a line now and then.

    Args:
        total: number of all steps.
        every: seconds between two lines.
    """

    def __init__(
        self,
        console: Console,
        what: str,
        total: int,
        every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._what, self._total = console, what, total
        self._every, self._clock = every, clock
        self._done = 0
        self._start = self._told = clock()
        # Steps differ much in length, so the estimate uses the mean of the whole run, not of the
        # last steps.
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn(),
            console=console, refresh_per_second=1, speed_estimate_period=1e9,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, now: str) -> None:
        """Count one step; ``now`` names it."""
        self._done += 1
        self._bar.update(self._task, advance=1, description=f"{self._what} {now}")
        if not self._console.is_terminal and self._clock() - self._told >= self._every:
            self._told = self._clock()
            self._console.print(self.line(), highlight=False)

    def drop(self, steps: int) -> None:
        """Reduce the total by ``steps`` steps, which are not going to be done."""
        self._total -= steps
        self._bar.update(self._task, total=self._total)

    def line(self) -> str:
        """Return the progress as a text, such as ``measuring: 120 of 1768, 14 min left``."""
        passed = self._clock() - self._start
        left = passed / self._done * (self._total - self._done) if self._done else 0.0
        return f"{self._what}: {self._done} of {self._total}, {left / 60:.0f} min left"
