"""Checks what may be committed: texts of at most 200 kB, and other files only in certain places.

python -m tools.habits FILE ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 200_000
PLACES = (
    "bench/heads/*.safetensors",
    "bench/results/*.json",
    "data/src/paradecode_data/models/*/model.safetensors",
    "data/src/paradecode_data/tables/*.ngrams",
    "docs/img/*.png",
    "src/paradecode/methods/draft/tables/*.ngrams",
    "tests/models/heads/*.safetensors",
)
"""Patterns of paths whose files may be binary or larger."""


def misplaced(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return complaints about binaries and large files outside ``PLACES``.

    Paths are relative to ``root`` and use "/". A path without a file is ignored, because Git also
    names deleted files. Like Git, this calls a file binary if its first 8,000 bytes contain a zero.
    """
    complaints = []
    for path in paths:
        file = root / path
        if not file.is_file() or any(fnmatch(path, place) for place in PLACES):
            continue
        if (size := file.stat().st_size) > MOST_BYTES:
            complaints.append(f"{path} has {size:,} bytes, and the limit is {MOST_BYTES:,}")
        with file.open("rb") as opened:
            if b"\0" in opened.read(8000):
                complaints.append(f"{path} is binary")
    return complaints


if __name__ == "__main__":
    if found := misplaced(sys.argv[1:]):
        places = "\n  ".join(PLACES)
        sys.exit("\n".join([*found, f"Files of these kinds may be committed:\n  {places}"]))
