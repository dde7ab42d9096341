"""Measures every method on one model, by task group, and compares with what replay predicts.

    python -m tools.figures.methods [--out bench/results/methods.json] [--max-tokens 192]
                            [--model FILE --draft-model FILE --draft-vocabulary TABLE]
                            [--per-group 4] [--methods a b+c]

All methods answer a prompt one after the other, in an order that rotates from prompt to prompt.
Each has a tenant of its own, so that no method learns from another's answers. Speeds are decode
tokens per second, token-weighted; intervals are paired bootstraps over prompts. Outputs are
compared with plain decoding token by token. Then the same prompts are recorded, and the methods are
replayed where this is possible, with the cost curve measured at the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.engine import cost
from paradecode.engine.cost import CostCurve
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.measure.replay import Recording, ReplayOutcome, play, record
from tools.script import Columns, err, options, save, show, stamped

PLAIN = "greedy"
METHODS = (
    "prompt-lookup", "prompt-lookup(table='smollm2-135m-instruct')", "copyspec", "suffix",
    "input-copy", "token-recycling", "aded", "stand",
    "retrieval", "rasd", "jacobi(explore=always)", "lookahead(explore=always)", "layer-skip",
    "swift", "del", "prompt-lookup+token-recycling", "suffix+token-recycling",
    "prompt-lookup(budget=fixed)", "token-recycling(budget=fixed)",
    "suffix(mode=path,budget=fixed)",
)  # fmt: skip


def calibrate(llm: LLM) -> CostCurve:
    """Measure what forwards cost now, and let the automatic budget decide by these costs."""
    llm.engine.load.curve = cost.measure(llm.backend, llm.engine.pools[TARGET].count)
    return llm.engine.load.curve


def predict(recording: Recording, methods: list[str]) -> dict[str, dict[str, Any]]:
    """Replay the methods that can be replayed, and return what is predicted for each."""
    plain = play(recording, PLAIN)
    found = {}
    for method in methods:
        try:
            outcome: ReplayOutcome = play(recording, method)
        except InvalidInput:  # It runs forwards of its own.
            continue
        found[method] = {
            "exact": outcome.exact,
            "speed_up": outcome.speed_up(plain),
            "mean_acceptance_length": outcome.totals().mean_acceptance_length,
        }
    return found


def summarise(runs: Sequence[PairedRun], methods: list[str]) -> list[dict[str, Any]]:
    """Return each method's totals, ratios with intervals, and equality with plain decoding."""
    groups = sorted({run.group for run in runs})
    rows = []
    for method in methods:
        mine = [run for run in runs if run.method == method]
        stats = [run.stats for run in mine]
        seconds = sum(s.decode_seconds for s in stats)
        drafts, accepted = sum(s.drafts for s in stats), sum(s.accepted for s in stats)
        overall = speed_up(runs, method, PLAIN)
        by_group = {group: speed_up(runs, method, PLAIN, group) for group in groups}
        rows.append(
            {
                "method": method,
                "tokens_per_second": sum(run.later for run in mine) / seconds,
                "speed_up": asdict(overall) if overall else None,
                "groups": {g: asdict(found) if found else None for g, found in by_group.items()},
                "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
                "forwards_per_token": sum(s.forwards for s in stats)
                / sum(s.generated for s in stats),
                "decoder_share": sum(s.decoder_seconds for s in stats) / seconds,
                "equal_to_plain": equal(runs, method, PLAIN),
                "prompts": len(mine),
            }
        )
    return rows


def worst_group(row: Mapping[str, Any]) -> str:
    speed, name = min((found["value"], name) for name, found in row["groups"].items())
    return f"{name} {speed:.2f}"


COLUMNS: Columns = {
    "method": "{method}",
    "tokens/s": "{tokens_per_second:.0f}",
    "over plain": "{speed_up[value]:.2f}",
    "95 %": "{speed_up[low]:.2f}-{speed_up[high]:.2f}",
    "worst group": worst_group,
    "acceptance length": "{mean_acceptance_length:.2f}",
    "tokens/forward": lambda row: f"{1 / row['forwards_per_token']:.2f}",
    "method's share": "{decoder_share:.0%}",
    "equal": "{equal_to_plain}/{prompts}",
    "replay": lambda row: f"{row['predicted']['speed_up']:.2f}" if "predicted" in row else "",
}


def main() -> None:
    parser = options(__doc__, max_tokens=192, per_group=1000)
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--draft-vocabulary")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    methods = [PLAIN, *given.methods]
    with LLM(
        given.model, draft_model=given.draft_model, draft_vocabulary=given.draft_vocabulary,
        backend="native",
    ) as llm:  # fmt: skip
        curve = calibrate(llm)
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
        warm_up(llm, given.methods)
        with Progress(console=err) as progress:
            task = progress.add_task("prompts", total=len(items) * len(methods))
            runs = decode_by_turns(llm, items, methods, progress=lambda: progress.advance(task))
        recording = record(llm, items)
        model, backend = llm.model, llm.backend.name
    predictions = predict(recording, methods)
    rows = [
        row | ({"predicted": predictions[row["method"]]} if row["method"] in predictions else {})
        for row in summarise(runs, methods)
    ]
    show(rows, COLUMNS, width=170)
    result = stamped(
        model=model,
        backend=backend,
        draft_model=given.draft_model and Path(given.draft_model).stem,
        draft_vocabulary=given.draft_vocabulary,
        max_tokens=given.max_tokens,
        curve=asdict(curve),
        methods=rows,
    )
    save(result, given.out)


if __name__ == "__main__":
    main()
