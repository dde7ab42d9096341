"""The consoles of commands: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

STOPPED = 130
"""Exit status after Ctrl-C; shells use the same."""
out, err = Console(), Console(stderr=True)


def print_json(value: Any, line: bool = False) -> None:
    """Print ``value`` as JSON, indented or on one line, in characters that any encoding has."""
    says_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    print(json.dumps(value, ensure_ascii=not says_all, indent=None if line else 2), flush=True)
