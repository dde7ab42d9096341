"""Finds files in packages that are installed besides this one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DATA = "paradecode_data"
"""Name of the package that contains the tiny models and further tables."""
DATA_FIX = 'install paradecode-data: pip install "paradecode[data]", or -e data in the checkout'


def places(path: str) -> list[Path]:
    """Return the possible paths of a file ``package/file``, without importing the package."""
    package, _, inner = path.partition("/")
    spec = find_spec(package)
    return [Path(folder) / inner for folder in (spec and spec.submodule_search_locations) or ()]
