"""Check, before the work begins, whether the files of a command can be written."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from paradecode.core.errors import InvalidInput


def writable(field: str, path: Path, suffix: str = "") -> None:
    """Raise InvalidInput unless ``path`` can become a file.

    Args:
        suffix: the text with which the file's name must end.
    """
    kind = f"a {suffix} file" if suffix else "a file"
    if not path.name.endswith(suffix):
        raise InvalidInput(field, str(path), f"name {kind}")
    if fix := _instead(path):
        raise InvalidInput(field, str(path), f"name {kind} {fix}")


def make_folder(field: str, path: Path) -> None:
    """Make the folder of a run. Raise InvalidInput if it cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except OSError as error:
        raise InvalidInput(field, str(path), f"name a folder ({error.strerror})") from None


def _instead(path: Path) -> str:
    """Return which file to name instead of one that cannot be written, or "" if it can be."""
    folder = path.absolute().parent
    try:
        if path.is_dir() or not folder.is_dir():
            return "in a folder that is there"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "that can be written"
        TemporaryFile(dir=folder).close()  # Rights are not enough: root has them in /proc.
    except OSError as error:
        return f"that can be written ({error.strerror})"
    return ""
