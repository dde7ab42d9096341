"""The slow first uses in a page, from what ``tools.figures.first_use`` has measured.

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
"""A first call that takes more than so many times the later ones is shown."""
HEAD = ("where", "feature", "first, ms", "second", "median of later", "slowest of later")


def text(result: dict[str, Any]) -> str:
    """Markdown: features that are slow at the first call, and rows behind a text that grows."""
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
