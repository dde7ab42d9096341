"""JSON from model folders: bounded, and with errors that say which file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidModel

MAX_JSON = 1 << 26


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; InvalidModel if there is none."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise InvalidModel(path.name, path.stat().st_size, "the file is too large")
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidModel):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InvalidModel(
            "model", str(path), f"the file cannot be read ({reason}); get a complete folder"
        ) from None
    if not isinstance(value, dict):
        raise InvalidModel(path.name, value, "it must hold a JSON object")
    return value
