"""What commands print to: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

out, err = Console(), Console(stderr=True)


def print_json(value: Any, line: bool = False) -> None:
    """Print `value` as JSON, indented, or on one line."""
    print(json.dumps(value, ensure_ascii=False, indent=None if line else 2), flush=True)
