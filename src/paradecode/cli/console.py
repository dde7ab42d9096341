"""What commands print to: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

out, err = Console(), Console(stderr=True)


def print_json(value: Any, line: bool = False) -> None:
    """Print `value` as JSON, indented, or on one line; any encoding can say all of it."""
    says_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    print(json.dumps(value, ensure_ascii=not says_all, indent=None if line else 2), flush=True)
