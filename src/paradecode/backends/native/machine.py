"""Find out the number of usable threads and the size of the memory."""

from __future__ import annotations

import math
import os
from pathlib import Path


def default_threads() -> int:
    """Return the number of cores that this process may use, limited by its cgroup's CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(Path("/sys/fs/cgroup"))
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def physical_memory() -> int | None:
    """Return this machine's memory in bytes, or None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _quota(root: Path) -> float | None:
    """Return the CPU quota of the control group in cores, or None if there is no limit."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = (root / "cpu/cpu.cfs_quota_us").read_text()
        period = (root / "cpu/cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
