"""Writes slow first uses into a page, from the measurements of ``tools.figures.first_use``.

python -m tools.pages.first_use_page bench/results/first_use.json docs/serve.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paradecode_lab.measure.tables import table
from tools.pages.marked import put

SLOW = 2
"""A feature is shown if its first call takes more than this many times a median later call."""
HEAD = ("where", "feature", "first, ms", "second", "median of later", "slowest of later")


def text(result: dict[str, Any]) -> str:
    """Return Markdown: features with a slow first call, and slow rows after a growing text."""
    rows = [
        (
            row["where"], row["feature"],
            *(f"{row[f'{name}_ms']:.0f}" for name in ("first", "second", "median", "slowest")),
        )
        for row in result["features"]
        if row["first_ms"] > SLOW * row["median_ms"]
    ]  # fmt: skip
    long = result["long_text"]
    slow = [f"{ms:.1f} ms at token {at}" for at, ms in long["slow_ms"].items()]
    said = (
        f"{result['date']}, {result['machine']['cpu']}, {result['machine']['cores']} cores, "
        f"{result['calls']} calls of each. A row behind up to {long['tokens']} tokens takes "
        f"{long['median_ms']:.1f} ms in the median. Rows that took more than three times as long: "
        f"{', '.join(slow) or 'none'}."
    )
    return f"{said}\n\n{table(HEAD, rows)}"


def main(result: str, page: str) -> None:
    put(Path(page), "first-use", text(json.loads(Path(result).read_text("utf-8"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
