"""Which processors compute the same bits: only they may go on with one another's outputs."""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path

from paradecode import __version__
from paradecode.backends.interface import Backend


def bits(backend: Backend, *settings: str) -> str:
    """A name for what this worker's sums depend on: versions, backend, type, processor.

    Args:
        settings: what the backend was opened with.
    """
    try:
        flags = re.findall(r"^(?:model name|flags|Features)\s*:.*$", _processor(), re.MULTILINE)
    except OSError:
        flags = [platform.processor()]
    parts = [__version__, type(backend).__name__, *settings, platform.machine(), *sorted({*flags})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    return Path("/proc/cpuinfo").read_text()
