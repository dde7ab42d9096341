"""The progress bar of measurements, and how they end when they are stopped."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paradecode.cli.console import err

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""


def open_progress() -> Progress:
    """A bar on standard error: what is running, how many of how many, and the time left."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=err,
    )  # fmt: skip
