"""Writes the worst attacks into a page, from the measurements of ``tools.serving.attacks``.

python -m tools.pages.attacks_page bench/results/serve_attacks.json docs/serve.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paradecode_lab.measure.tables import table
from tools.pages.marked import put

HEAD = (
    "attack", "what is sent", "at once", "answers", "seconds", "pause, ms", "/health, ms",
    "front, MB",
)  # fmt: skip
NOTICED = ("pause_ms", "health_ms", "front_mb")
SHOWN = 3


def text(result: dict[str, Any]) -> str:
    """Return Markdown: the attacks with the longest pauses, their answers, and what was noticed."""
    rows = [
        (
            row["name"], row["sends"], str(row["at_once"]), answers(row["statuses"]),
            f"{row['seconds']:.1f}", str(row["pause_ms"]), str(row["health_ms"]),
            f"{row['front_mb']:.0f}",
        )
        for row in sorted(result["attacks"], key=lambda row: -row["pause_ms"])[:SHOWN]
    ]  # fmt: skip
    plain = {name: round(1e3 * seen["pause"]) for name, seen in result["plain"].items()}
    pause, health, front = (max(row[k] for row in result["attacks"]) for k in NOTICED)
    said = (
        f"{result['date']}, {result['machine']['cpu']}: {' and '.join(result['models'])}. Without "
        f"an attack the stream pauses for {plain['tiny']} ms at most, on the canvas "
        f"{plain['canvas']} ms. The worst of {len(result['attacks'])} attacks: a pause of "
        f"{pause} ms, /health after {health} ms, the front {front:.0f} MB larger than before. "
        f"Beyond a bound: {len(result['wrong']) or 'none'}."
    )
    return f"{said}\n\n{table(HEAD, rows)}"


def answers(statuses: dict[str, int]) -> str:
    return ", ".join("closed" if status == "0" else status for status in statuses)


def main(result: str, page: str) -> None:
    put(Path(page), "attacks", text(json.loads(Path(result).read_text("utf-8"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
