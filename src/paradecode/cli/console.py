"""The consoles of the commands: results go to stdout, and everything else goes to stderr."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

STOPPED = 130
"""Exit status after Ctrl-C, as in shells."""
out: Console
err: Console
"""The consoles, made when they are first imported; lists and help pages need none."""


def __getattr__(name: str) -> Console:
    if name not in ("out", "err"):
        raise AttributeError(name)
    from rich.console import Console

    # Bars move on a terminal only. Notebooks set FORCE_COLOR, where they would fill pages.
    is_still = name == "err" and not (sys.stderr is not None and sys.stderr.isatty())
    console = globals()[name] = Console(
        stderr=name == "err", force_terminal=False if is_still else None
    )
    return console


class Heedless(io.FileIO):
    """A file that drops what the system refuses to write, as on a full disk."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def ignore_lost_words() -> None:
    """Make the program continue if standard error is closed or cannot be written.

    What it would say there is lost.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # It gets descriptor 2.
    elif isinstance(getattr(sys.stderr, "buffer", None), (io.BufferedWriter, io.FileIO)):
        file, encoding = Heedless(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(file, encoding, "replace", write_through=True)


def print_json(value: Any, line: bool = False) -> None:
    """Print ``value`` as JSON, indented or on one line.

    Characters that the output's encoding may lack are escaped.
    """
    says_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    print(json.dumps(value, ensure_ascii=not says_all, indent=None if line else 2), flush=True)
