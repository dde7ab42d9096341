"""Find files in packages that are installed beside this one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DATA = "paradecode_data"
"""Name of the package that holds the tiny models and further tables."""
DATA_FIX = 'install paradecode-data: pip install "paradecode[data]", or -e data in the checkout'


def places(path: str) -> list[Path]:
    """Return the paths that a ``package/file`` may have, without importing the package."""
    package, _, inner = path.partition("/")
    spec = find_spec(package)
    return [Path(folder) / inner for folder in (spec and spec.submodule_search_locations) or ()]
