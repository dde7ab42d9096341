"""Writes the tables of ``docs/methods.md``, from the results that :data:`PARTS` reads.

python -m tools.pages.which_page docs/methods.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paradecode.methods.parts import known
from paradecode_lab.measure.figures import figures
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.suites.parallel.summary import MethodSummary, summarise
from paradecode_lab.measure.tables import number, table
from tools.pages.marked import put
from tools.script import REPOSITORY

RESULTS = REPOSITORY / "bench" / "results"
WORK = {
    "edit": "edits", "agent": "agents", "extraction": "extraction", "rag": "documents",
    "summary": "summaries", "code": "code", "chat": "chat", "qa": "questions",
    "reasoning": "reasoning", "writing": "writing",
}  # fmt: skip
"""Group of prompts -> its name in the tables."""
CANVAS = (
    "static", "static(block_length=8)", "threshold", "threshold(block_length=8,cache=dual)", "assd"
)  # fmt: skip


def copying() -> str:
    """Return a table of the speed-ups of copying methods, by kind of task."""
    engines = figures(read_results(RESULTS / "generation.json"), "greedy")
    rows = [
        (f"`{each.name}`", *(_speed_up(each.groups[group].speedup) for group in WORK))
        for each in engines
        if "lookup" in each.name or each.name == "suffix"
    ]
    return table(("method", *WORK.values()), rows)


def head() -> str:
    """Return a table of the best method with a head, the head alone, and methods without one."""
    measured = _result("profile_1.5b.json")["measured"]
    chosen = [measured[0], *(each for each in measured if each["decoder"].startswith("mtp("))]
    chosen += [
        each for each in measured if "mtp" not in each["decoder"] and "+" not in each["decoder"]
    ]
    rows = [
        (
            f"`{each['decoder'].replace('bench/heads/qwen2.5-coder-1.5b-mtp', 'FOLDER')}`",
            number(each["speed_up"]["value"]),
            *(number(each["groups"][group]["value"]) for group in WORK),
        )
        for each in chosen
    ]
    return table(("method", "all", *WORK.values()), rows)


def canvas() -> str:
    """Return a table of right answers and speeds of canvas methods, on simple and graded tasks."""
    runs = [
        {each.method: each for each in summarise(read_results(RESULTS / file))}
        for file in ("parallel.json", "graded.json")
    ]
    rows = [
        (f"`{method}`", *(cell for run in runs for cell in _canvas(run.get(method))))
        for method in CANVAS
    ]
    head = ("method", "simple tasks: right", "× `static`", "graded tasks: right", "× `static`")
    counts = {kind: len(known(kind)) for kind in ("policy", "blocks", "cache")}
    said = "There are {policy} policies, {blocks} block rules and {cache} caches.".format(**counts)
    return f"{table(head, rows)}\n\n{said}"


def slower() -> str:
    """Return a table of the slowest and fastest batch of decoders, over plain decoding."""
    batches = [
        batch
        for file in ("never_slower.json", "never_slower_1.5b.json")
        for batch in _result(file)["batches"]
    ]
    names = {
        "auto": "the default", "hopeless": "a drafter that is always wrong",
        "plain": "plain decoding, measured again",
    }  # fmt: skip
    rows = []
    for name, said in names.items():
        found = [batch[f"{name}_over_plain"] for batch in batches]
        rows.append((said, number(min(found)), number(max(found))))
    return table(("decoding", "slowest batch", "fastest batch"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "copying": copying, "head": head, "canvas": canvas, "slower": slower
}  # fmt: skip


def _result(file: str) -> Any:
    return json.loads((RESULTS / file).read_text("utf-8"))


def _speed_up(found: Interval | None) -> str:
    return number(found.value) if found else ""


def _canvas(found: MethodSummary | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    right = f"{100 * found.total.exact.value:.1f} %"
    versus = found.versus
    if versus is None or not isinstance(versus.seconds, Interval):
        return right, "1"
    return right, number(versus.seconds.value)


def main(page: str) -> None:
    for name, part in PARTS.items():
        put(Path(page), name, part())


if __name__ == "__main__":
    main(*sys.argv[1:])
