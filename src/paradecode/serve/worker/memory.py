"""Measure the memory that this process holds."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path


def resident() -> int:
    """Return the resident memory in bytes. If the system does not report it, return its peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
