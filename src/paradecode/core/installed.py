"""Files in packages that are installed beside this one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DATA = "paradecode_data"
"""The package of tiny models and of further tables."""
DATA_FIX = 'install paradecode-data: pip install "paradecode[data]", or -e data in the checkout'


def places(path: str) -> list[Path]:
    """Where a path that begins with a package's name may be; the package is not imported."""
    package, _, inner = path.partition("/")
    spec = find_spec(package)
    return [Path(folder) / inner for folder in (spec and spec.submodule_search_locations) or ()]
