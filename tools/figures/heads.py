"""Trained heads on one target, side by side: what each makes, what its drafts cost, what they save.

    python -m tools.figures.heads RUN... [--model FILE] [--per-group 2] [--max-tokens 96]
        [--methods prompt-lookup ...] [--out FILE.json]

A RUN is the folder of `paradecode train head`. Every head drafts for the package's prompts, which
none was trained on, at the automatic budget and in chains of four (``fixed``), greedily; plain
decoding and ``--methods`` take turns with them prompt by prompt. ``draft`` is the time in drafts
for each target forward, ``MB`` the head's own weights in its folder. Every output is compared with
plain decoding's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from paradecode.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode.training.heads.initial import METHODS
from paradecode.training.heads.training import HEAD
from tools.script import Columns, err, options, save, show, stamped

PLAIN = "greedy"
BUDGETS = {"auto": "", "fixed": ",budget=fixed,num_speculative_tokens=4,width=1"}
COLUMNS: Columns = {
    "head": "{head}", "budget": "{budget}", "MB": lambda row: f"{row['bytes'] / 1e6:.1f}",
    "steps": "{steps}", "hours": lambda row: f"{row.get('seconds', 0) / 3600:.1f}",
    "tokens a forward": "{tokens_a_forward:.2f}",
    "held out, chains": lambda row: f"{row['held_out']:.2f}" if row["held_out"] else "",
    "draft, ms": "{draft_ms:.2f}", "over plain": "{speed_up[value]:.2f}",
    "95 %": "{speed_up[low]:.2f}-{speed_up[high]:.2f}", "equal": "{equal}/{prompts}",
}  # fmt: skip


def read_run(folder: Path) -> dict[str, Any]:
    """What a training says of itself.

    Raises:
        InvalidInput: if it has not ended.
    """
    report = folder / "report.json"
    if not report.is_file():
        raise InvalidInput("RUN", str(folder), "it has no report.json: let its training end")
    found = json.loads(report.read_text("utf-8"))
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    times = [json.loads(line)["seconds"] for line in lines]
    # The clock begins anew where a training goes on.
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
    """A method's totals beside plain decoding."""
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


def main() -> None:
    parser = options(__doc__, max_tokens=96, per_group=2)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="*", default=["prompt-lookup", "auto"])
    given = parser.parse_args()
    others = {m: {"head": m, "budget": "auto", "bytes": 0, "steps": "", "held_out": None}
              for m in given.methods}  # fmt: skip
    heads = {
        spec_of(run, budget): run | {"budget": budget}
        for run in map(read_run, given.runs)
        for budget in BUDGETS
    }
    ways = {**others, **heads}
    with LLM(given.model, backend="native") as llm:
        for run in heads.values():
            if run["model"] != llm.model:
                raise InvalidInput("RUN", run["model"], f"a head of {llm.model} is needed")
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        methods = [PLAIN, *ways]
        with Progress(console=err) as progress:
            task = progress.add_task("prompts", total=len(items) * len(methods))
            runs = decode_by_turns(llm, items, methods, progress=lambda: progress.advance(task))
        model = llm.model
    rows = [row_of(runs, method, facts) for method, facts in ways.items()]
    for row in rows:
        row.pop("use", None)  # It names a folder of this machine.
    show(rows, COLUMNS, width=120)
    save(stamped(model=model, max_tokens=given.max_tokens, heads=rows), given.out)


if __name__ == "__main__":
    main()
