"""Writes a table of formats into a page, from ``tools.figures.perplexity_formats``' result.

python -m tools.pages.perplexity_page bench/results/perplexity_formats.json docs/architecture.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paradecode_lab.measure.tables import table
from tools.pages.marked import put

HEAD = ("format", "nats a token above f32", "95 %", "ik_llama.cpp's")


def text(result: dict[str, Any]) -> str:
    """Return Markdown: losses of our core and ik_llama.cpp on the same file, minus that of f32."""
    found = {(row["backend"], row["weights"]): row for row in result["formats"]}
    rows = []
    for (backend, weights), own in found.items():
        if backend != "native":
            continue
        peer = found.get(("ik_llama.cpp", weights))
        rows.append(
            (
                weights, f"{own['nll_difference']:+.4f}", f"± {own['spread']:.4f}",
                f"{peer['nll_difference']:+.4f}" if peer else "",
            )
        )  # fmt: skip
    first = result["formats"][0]
    said = (
        f"{result['date']}, {result['machine']['cpu']}: {result['model']}, {first['tokens']} "
        f"tokens in windows of {result['window']}."
    )
    return f"{said}\n\n{table(HEAD, rows)}"


def main(result: str, page: str) -> None:
    put(Path(page), "perplexity", text(json.loads(Path(result).read_text("utf-8"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
