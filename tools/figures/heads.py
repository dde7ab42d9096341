"""Compares trained heads on one target: accepted tokens, the cost of drafts, and the speed.

    python -m tools.figures.heads [RUN...] [--model FILE] [--per-group 2] [--max-tokens 96]
        [--methods prompt-lookup ...] [--out FILE.json]
    python -m tools.figures.heads FILE.json --into docs/training.md

A RUN is the folder of `paradecode train head`; a head without one may be in ``--methods``. Every
head drafts for the package's prompts, on which none was trained, at the automatic budget and in
chains of four (``fixed``), greedily; plain decoding and ``--methods`` take turns with them prompt
by prompt. ``MB`` is the size of the head's own weights, ``minutes`` the wall time of its training.
``held out`` is the number of tokens per forward that chains would make on held-out texts, ``draft``
the drafting time per target forward. Every output is compared with plain decoding's.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.progress import Progress

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.engine import resources
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import Column, markdown, times
from paradecode_lab.training.heads.initial import METHODS
from paradecode_lab.training.heads.training import HEAD
from tools.pages.marked import put
from tools.script import err, options, save, stamped

PLAIN = "greedy"
BUDGETS = {"auto": "", "fixed": ",budget=fixed,num_speculative_tokens=4,width=1"}
Row = Mapping[str, Any]
TOKENS: Column[Row] = Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}")
OVER: Column[Row] = Column(
    "over plain", lambda row: times(row["speed_up"] and Interval(**row["speed_up"]))
)
COLUMNS: tuple[Column[Row], ...] = (
    Column("head", lambda row: row["head"]),
    Column("budget", lambda row: row["budget"]),
    Column("MB", lambda row: f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else ""),
    Column("steps", lambda row: str(row["steps"])),
    Column("minutes", lambda row: f"{row['seconds'] / 60:.0f}" if "seconds" in row else ""),
    Column("held out", lambda row: f"{row['held_out']:.2f}" if row["held_out"] else ""),
    TOKENS,
    Column("draft, ms", lambda row: f"{row['draft_ms']:.2f}"),
    OVER,
    Column("equal", lambda row: f"{row['equal']} of {row['prompts']}"),
)
SHOWN: tuple[Column[Sequence[Row]], ...] = (
    Column("head", lambda rows: f"`{rows[0]['head']}`"),
    Column("held out", lambda rows: f"{rows[0]['held_out']:.2f}" if rows[0]["held_out"] else ""),
    Column(TOKENS.head, lambda rows: TOKENS.cell(rows[0])),
    Column(OVER.head, lambda rows: OVER.cell(rows[0])),
)
FIXED: tuple[Column[Sequence[Row]], ...] = (
    Column(f"{TOKENS.head}, fixed", lambda rows: "".join(map(TOKENS.cell, rows[1:]))),
    Column(f"{OVER.head}, fixed", lambda rows: "".join(map(OVER.cell, rows[1:]))),
)
"""A head's columns on a page: first those of the automatic budget, then those of ``fixed``."""


def shown(rows: Sequence[Row]) -> str:
    """Return a Markdown table for a page, with a line for each head."""
    names = dict.fromkeys(row["head"] for row in rows)
    heads = [[row for row in rows if row["head"] == name] for name in names]
    return markdown(SHOWN + FIXED if any(lines[1:] for lines in heads) else SHOWN, heads)


def read_run(folder: Path) -> dict[str, Any]:
    """Read what a training reports about itself.

    Raises:
        InvalidInput: the training has not ended.
    """
    report = folder / "report.json"
    if not report.is_file():
        raise InvalidInput("RUN", str(folder), "it has no report.json: let its training end")
    found = json.loads(report.read_text("utf-8"))
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    times = [json.loads(line)["seconds"] for line in lines]
    # The clock begins anew where a training was resumed.
    seconds = sum(now for now, then in zip(times, [*times[1:], 0.0]) if then < now)
    size = sum(file.stat().st_size for file in (folder / HEAD).rglob("*.safetensors"))
    use = f"{METHODS[found['method']]}(head='{folder / HEAD}')"
    return {
        "head": found["method"], "model": found["model"], "use": use, "bytes": size,
        "steps": found["plan"]["steps"], "seconds": seconds,
        "tokens": found["tokens"], "held_out": found["acceptance"]["tokens_a_forward"],
    }  # fmt: skip


def spec_of(run: dict[str, Any], budget: str) -> str:
    return run["use"].removesuffix(")") + BUDGETS[budget] + ")"


def row_of(runs: Sequence[PairedRun], method: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a method's totals beside plain decoding's."""
    mine = [run for run in runs if run.method == method]
    forwards = sum(run.stats.forwards for run in mine)
    drafting = sum(run.stats.other_model_seconds for run in mine)
    overall = speed_up(runs, method, PLAIN)
    groups = {run.group: speed_up(runs, method, PLAIN, run.group) for run in mine}
    return facts | {
        "tokens_a_forward": sum(run.stats.generated for run in mine) / forwards,
        "rows_a_forward": sum(run.stats.drafted for run in mine) / forwards,
        "draft_ms": 1e3 * drafting / forwards,
        "speed_up": overall and asdict(overall),
        "groups": {group: found and asdict(found) for group, found in groups.items()},
        "equal": equal(runs, method, PLAIN), "prompts": len(mine),
    }  # fmt: skip


def measured(given: Namespace) -> dict[str, Any]:
    """Measure all heads and the other methods, in turns with plain decoding."""
    others = {m: {"head": m, "budget": "auto", "bytes": 0, "steps": "", "held_out": None}
              for m in given.methods}  # fmt: skip
    heads = {
        spec_of(run, budget): run | {"budget": budget}
        for run in map(read_run, given.runs)
        for budget in BUDGETS
    }
    ways = {**others, **heads}
    all_open = patch.object(resources, "MOST_HEADS", len(given.runs) + len(given.methods))
    with all_open, LLM(given.model, backend="native") as llm:
        for run in heads.values():
            if run["model"] != llm.model:
                raise InvalidInput("RUN", run["model"], f"a head of {llm.model} is needed")
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        methods = [PLAIN, *ways]
        warm_up(llm, ways)
        with Progress(console=err) as progress:
            task = progress.add_task("prompts", total=len(items) * len(methods))
            runs = decode_by_turns(llm, items, methods, progress=lambda: progress.advance(task))
        model = llm.model
    rows = [row_of(runs, method, facts) for method, facts in ways.items()]
    for row in rows:
        row.pop("use", None)  # It names a folder of this machine.
    return stamped(model=model, max_tokens=given.max_tokens, heads=rows)


def main() -> None:
    parser = options(__doc__, max_tokens=96, per_group=2)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="*", default=["prompt-lookup", "auto"])
    parser.add_argument("--into", type=Path, help="a page with marks named as the JSON")
    given = parser.parse_args()
    known = bool(given.runs) and given.runs[0].suffix == ".json"
    made = json.loads(given.runs[0].read_text("utf-8")) if known else measured(given)
    table = markdown(COLUMNS, made["heads"])
    print(table)
    save(made, given.out)
    if given.into:
        put(given.into, (given.out or given.runs[0]).stem, f"\n{shown(made['heads'])}\n")


if __name__ == "__main__":
    main()
