"""A draft model with nested exits, and the model that it was cut from as target.

    paradecode train head mtp out/head --own 700 --max-tokens 128 --length 256   # collects answers
    paradecode train sorted out/nested --model default --texts out/head/data/texts.jsonl \\
        --exits "4 8" --length 160 --batch 3 --steps 150 --rate 5e-4 --threads 1
    python -m tools.figures.nested out/nested --exits "4 8" [--model default] [--per-group 2]
        [--max-tokens 48] [--dtype q8] [--out FILE.json]
    python -m tools.figures.nested FILE.json --into docs/training.md

The target's first layers as they are (``cut``) and the trained ones draft for prompts of the
package, greedily: as a plain draft model, and with exits that are taken when they are ``sure``. A
budget of ``fixed`` drafts chains of four whatever they bring. Ways take turns with plain decoding
prompt by prompt, and every output is compared with plain decoding's. ``layers`` are those that a
draft token ran. Weights of both models have one format, ``--dtype``. Two first requests of each way
are not counted.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from rich.progress import track

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.draft_model import NestedRows, Stage, read_exits
from paradecode.models.catalogue import open_model
from paradecode.prompts import first_of_each_group, first_turns, load_prompts
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import Column, markdown, times
from paradecode_lab.training.retraining.nested import NestedObjective
from paradecode_lab.training.retraining.texts import MODEL
from tools.figures.heads import PLAIN, row_of
from tools.pages.marked import put
from tools.script import err, options, save, stamped

BUDGETS = {"fixed": ",budget=fixed,num_speculative_tokens=4", "auto": ""}
WHOLE = "draft-model(width=1{budget})"
SURE = (0.9, 0.5, 0.0)
COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("draft model", lambda row: row["draft"]),
    Column("method", lambda row: f"`{row['method']}`"),
    Column("budget", lambda row: row["budget"]),
    Column("accepted", lambda row: f"{row['accepted']:,} of {row['drafted']:,}"),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("layers", lambda row: f"{row['layers']:.2f}" if row["layers"] else ""),
    Column("draft, ms", lambda row: f"{row['draft_ms']:.1f}"),
    Column("over plain", lambda row: times(row["speed_up"] and Interval(**row["speed_up"]))),
    Column("equal", lambda row: f"{row['equal']} of {row['prompts']}"),
)


def ways(draft: str, exits: str) -> dict[str, dict[str, Any]]:
    """Spec -> draft model, method as the table names it, and budget."""
    nested = [f"s2d(exits='{exits}',sure={sure}{{budget}})" for sure in SURE]
    return {
        form.format(budget=given): {
            "draft": draft, "method": form.format(budget=""), "budget": budget
        }
        for form in (WHOLE, *(nested if draft == "trained" else ()))
        for budget, given in BUDGETS.items()
    }  # fmt: skip


@contextmanager
def depths_noted() -> Iterator[list[int]]:
    """How many layers each draft token of `s2d` ran, of all that are made meanwhile."""
    noted, run = list[int](), NestedRows._run

    def noting(self: NestedRows, stage: Stage, *rest: Any) -> Generator[Any, Any, Any]:
        if not stage.layers[0]:
            noted.append(0)
        noted[-1] = stage.layers[-1] + 1
        return (yield from run(self, stage, *rest))

    with patch.object(NestedRows, "_run", noting):
        yield noted


def measured(given: Namespace) -> dict[str, Any]:
    """A row for each way, and the loss as the training's log has it."""
    layers = read_exits(given.exits)[-1]
    folder = given.run / MODEL
    if not (folder / "config.json").is_file():
        raise InvalidInput("RUN", str(given.run), "it has no model: let its training end")
    rows = []
    with TemporaryDirectory() as place:
        objective = NestedObjective(
            open_model(given.model), read_exits(given.exits), 0, torch.device("cpu")
        )
        objective.export(Path(place))
        del objective
        for draft, model in (("cut", Path(place) / MODEL), ("trained", folder)):
            rows += of_draft(draft, model, layers, given)
    log = [json.loads(line) for line in (given.run / "log.jsonl").read_text("utf-8").splitlines()]
    settings = {n: getattr(given, n) for n in ("model", "dtype", "exits", "max_tokens")}
    return stamped(**settings, log=log, methods=rows)


def of_draft(draft: str, model: Path, layers: int, given: Namespace) -> list[dict[str, Any]]:
    """A row for each way with one draft model."""
    facts = ways(draft, given.exits)
    with LLM(given.model, draft_model=model, dtype=given.dtype) as llm:
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        warm_up(llm, facts)
        runs, depths = list[PairedRun](), dict[str, list[int]]()
        order = [PLAIN, *facts]
        for number, item in track([*enumerate(items)], draft, console=err):
            first = number % len(order)
            for spec in (*order[first:], *order[:first]):
                with depths_noted() as noted:
                    runs += decode_by_turns(llm, [item], [spec])
                depths.setdefault(spec, []).extend(noted)
    rows = []
    for spec, about in facts.items():
        stats = [run.stats for run in runs if run.method == spec]
        ran, drafted = depths[spec], sum(one.drafted for one in stats)
        deep = sum(ran) / len(ran) if ran else layers if drafted else 0
        counts = {"drafted": drafted, "accepted": sum(one.accepted for one in stats)}
        rows.append(row_of(runs, spec, about | counts | {"layers": deep}))
    return rows


def main() -> None:
    parser = options(__doc__, model="default", exits="", per_group=2, max_tokens=48, dtype="q8")
    parser.add_argument("run", type=Path, help="folder of the run, or the JSON of a measurement")
    parser.add_argument("--into", type=Path, help="a page with marks named as the JSON")
    given = parser.parse_args()
    known = given.run.suffix == ".json"
    made = json.loads(given.run.read_text("utf-8")) if known else measured(given)
    table = markdown(COLUMNS, made["methods"])
    print(table)
    save(made, given.out)
    if given.into:
        put(given.into, (given.out or given.run).stem, f"\n{table}\n")


if __name__ == "__main__":
    main()
