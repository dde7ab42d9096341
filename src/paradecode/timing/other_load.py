"""Measures the processor time that other processes use while something is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

QUIET = 0.2
"""Number of cores that other processes may use before a measurement counts as disturbed."""


def busy_seconds() -> float | None:
    """Return the processor seconds that all processes have used since the system start (Linux)."""
    try:
        fields = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def own_seconds() -> float:
    """Return the processor seconds that this process has used."""
    times = os.times()
    return times.user + times.system


class OtherLoad:
    """Measures the processor time that other processes use after this object was made.

    Args:
        own: returns the processor seconds that the measured processes have used so far.
    """

    def __init__(self, own: Callable[[], float] = own_seconds) -> None:
        self._own = own
        self._began = time.perf_counter(), busy_seconds(), own()

    def look(self) -> tuple[float, float | None]:
        """Return the seconds since this object was made, and how many cores others used.

        The number of cores is a mean over these seconds, or None if it is unknown.
        """
        began, busy, own = self._began
        seconds, now = time.perf_counter() - began, busy_seconds()
        if busy is None or now is None or seconds <= 0:
            return seconds, None
        return seconds, max(0.0, now - busy - (self._own() - own)) / seconds
