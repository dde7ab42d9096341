"""Writes the certificates of servers into a page.

python -m tools.pages.servers_page bench/results/server_*.json docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paradecode_lab.measure.tables import table
from tools.pages.marked import put

HEAD = (
    "certificate", "verdict", "plain answers that move", "speculative ones that differ",
    "by more than noise", "drafted", "kept", "places of the law", "smallest shift found",
)  # fmt: skip


def row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a certificate's cells; answers are counted in all ways of asking together."""
    moving = [way["runs"] - len(way["differences"]) for way in found["noise"]]
    runs = sum(way["runs"] for way in found["noise"])
    tested, asked = found["tokens"], sum(way["runs"] for way in found["tokens"])
    differ = [each for way in tested for each in way["differences"]]
    beyond = sum(not (each["moves"] or each["near_tie"]) for each in differ)
    counts = [way["drafts"] or {} for way in tested]
    drafted, kept = (sum(each.get(f) or 0 for each in counts) for f in ("drafted", "accepted"))
    shifts = [word["smallest"] for place in found["law"] for word in place["test"]["words"]]
    return (
        f"`{name}`", found["verdict"], f"{runs - sum(moving)} of {runs}",
        f"{len(differ)} of {asked}", str(beyond), str(drafted), str(kept),
        str(len(found["law"])), f"{max(shifts):.3f}" if shifts else "-",
    )  # fmt: skip


def main(*given: str) -> None:
    *files, page = map(Path, given)
    rows = [row(file.name, json.loads(file.read_text("utf-8"))) for file in files]
    put(page, "servers", table(HEAD, rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
