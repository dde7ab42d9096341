"""Writes into a page what a forward costs beside the least possible, and what a start takes.

python -m tools.pages.core_page bench/results/core.json bench/results/start.json docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paradecode_lab.measure.tables import table
from tools.pages.marked import put

FLOORS = ("model", "MB a forward", "GB/s read", "floor of one row, ms", "one row reads at",
          "a row's products, ms", "prompt of 512, tokens/s")  # fmt: skip
FRESH = ("model", "loaded, s", "first answer, s", "peak of loading, MB", "times the file",
         "resident after two tokens, MB", "first, second, third prompt, tokens/s")  # fmt: skip


def forwards(result: dict[str, Any]) -> str:
    """Return Markdown: least times, and milliseconds by context and number of rows.

    Brackets hold the multiple of the time of one row.
    """
    floors = [
        (
            each["model"], f"{each['megabytes']:.0f}", f"{each['bandwidth']:.0f}",
            f"{each['floor_ms']:.2f}", f"{each['share']:.0%} of that", f"{each['row_ms']:.2f}",
            f"{each['prompt']:.0f}",
        )
        for each in result["floors"]
    ]  # fmt: skip
    counts = sorted({each["rows"] for each in result["forwards"]})
    times: dict[tuple[str, int], dict[int, str]] = {}
    for each in result["forwards"]:
        cell = f"{each['ms']:.2f} ({each['ratio']:.2f})"
        times.setdefault((each["model"], each["context"]), {})[each["rows"]] = cell
    rows = [
        (model, str(context), *(cells[count] for count in counts))
        for (model, context), cells in times.items()
    ]
    head = ("model", "context", *(f"{count} rows" if count > 1 else "1 row" for count in counts))
    parts = [table(FLOORS, floors), "Milliseconds, and times one row:", table(head, rows)]
    if "phases" in result:  # Runs before 2026-11-23 have none.
        parts += ["Milliseconds by phase, and at least:", phases(result)]
    return "\n\n".join(parts)


def phases(result: dict[str, Any]) -> str:
    """Return Markdown: the milliseconds of each phase, with the least possible in brackets."""
    rows: list[Sequence[str]] = []
    for each in result["phases"]:
        taken, least = each["milliseconds"], each["floors"]
        sums = {"all": tuple(map(sum, zip(*taken.values())))}
        floors = least | {"all": tuple(map(sum, zip(*least.values())))}
        rows += [
            (each["model"], phase, *(_cell(*pair) for pair in zip(times, floors[phase])))
            for phase, times in (taken | sums).items()
        ]
    counts = (f"{count} row{'s' * (count > 1)}" for count in result["phases"][0]["rows"])
    return table(("model", "phase", *counts), rows)


def _cell(taken: float, least: float) -> str:
    return f"{taken:.2f} ({least:.2f})" if least else f"{taken:.2f}"


def fresh(result: dict[str, Any]) -> str:
    """Return Markdown: loading, memory and the first prompts of a new process."""
    rows: Iterable[Sequence[str]] = (
        (
            each["model"], f"{each['load_seconds']:.2f}", f"{each['first_answer_seconds']:.2f}",
            f"{each['peak_bytes'] / 1e6:.0f}",
            f"{each['peak_bytes'] / each['file_bytes']:.2f}" if each["file_bytes"] else "",
            f"{each['resident_bytes'] / 1e6:.0f}",
            ", ".join(f"{each[f'{nth}_prompt']:.0f}" for nth in ("first", "second", "third")),
        )
        for each in result["models"]
    )  # fmt: skip
    return table(FRESH, list(rows))


def said(result: dict[str, Any], file: str) -> str:
    """Return a line that says when and on which machine the file's figures were measured."""
    machine = result["machine"]
    return (
        f"`bench/results/{file}`, {result['date']}, {machine['cpu']}, {machine['cores']} cores, "
        f"medians over {result['rounds']} rounds:"
    )


def main(core: str, start: str, page: str) -> None:
    parts = []
    for file, text in ((core, forwards), (start, fresh)):
        result = json.loads(Path(file).read_text("utf-8"))
        parts.append(f"{said(result, Path(file).name)}\n\n{text(result)}")
    put(Path(page), "core", "\n\n".join(parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
