"""Waits for events without a short limit, so that a busy machine fails no test."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 300.0
"""Seconds after which a test fails that would otherwise wait for ever."""


def until(truth: Callable[[], object]) -> None:
    """Wait until ``truth()`` is true; fails after ``PATIENCE`` seconds."""
    end = time.monotonic() + PATIENCE
    while not truth():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def state(pid: int) -> str:
    """Return Linux's state of a process: "T" if stopped, "Z" if it has ended or is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
