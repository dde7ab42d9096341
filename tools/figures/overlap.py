"""Draft and target at the same time, on cores of their own, beside taking turns on all of them.

    python -m tools.figures.overlap --model FILE.gguf --draft-model FILE.gguf [--draft-threads 1]
        [--methods draft-model pearl mirror-sd] [--per-group 1] [--max-tokens 32] [--out FILE.json]

Two engines have the same two models: in one both models use all cores in turn, in the other the
draft model has ``--draft-threads`` and the target the rest. Ways take turns prompt by prompt, and
each is compared with plain decoding on all cores: decode speed, and the output token by token.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.backends.native.machine import default_threads
from paradecode.prompts import first_of_each_group, first_turns, load_prompts
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from tools.script import Columns, err, options, save, show, stamped

PLAIN = "greedy, in turn"
COLUMNS: Columns = {
    "way": "{way}", "tokens a forward": "{tokens_a_forward:.2f}",
    "target, ms": "{target_ms:.1f}", "draft, ms": "{draft_ms:.1f}", "step, ms": "{step_ms:.1f}",
    "over plain": "{speed_up[value]:.2f}", "95 %": "{speed_up[low]:.2f}-{speed_up[high]:.2f}",
    "equal": "{equal}/{prompts}",
}  # fmt: skip


def row_of(runs: list[PairedRun], way: str) -> dict[str, Any]:
    """The totals of a way. Times are per target forward and include the prompts' forwards."""
    stats = [run.stats for run in runs if run.method == way]
    forwards = sum(one.forwards for one in stats)
    overall = speed_up(runs, way, PLAIN)
    return {
        "way": way, "tokens_a_forward": sum(one.generated for one in stats) / forwards,
        "target_ms": 1e3 * sum(one.target_seconds for one in stats) / forwards,
        "draft_ms": 1e3 * sum(one.other_model_seconds for one in stats) / forwards,
        "step_ms": 1e3 * sum(one.prefill_seconds + one.decode_seconds for one in stats) / forwards,
        "speed_up": overall and asdict(overall), "equal": equal(runs, way, PLAIN),
        "prompts": len(stats),
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__, model="", draft_model="", draft_threads=1, per_group=1, max_tokens=32)
    parser.add_argument("--methods", nargs="*", default=["draft-model", "pearl", "mirror-sd"])
    given = parser.parse_args()
    names = {"model": given.model or None, "draft_model": given.draft_model, "backend": "native"}
    with LLM(**names) as turns, LLM(**names, draft_threads=given.draft_threads) as apart:
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, turns.chat_tokens, given.max_tokens)
        ways = {"in turn": turns, "apart": apart}
        methods = ["greedy", *given.methods]
        for llm in ways.values():
            warm_up(llm, given.methods)
        runs: list[PairedRun] = []
        with Progress(console=err) as progress:
            task = progress.add_task("prompts", total=len(items) * len(ways) * len(methods))
            for number, item in enumerate(items):
                for where in sorted(ways, reverse=number % 2 == 0):
                    made = decode_by_turns(
                        ways[where], [item], methods, progress=lambda: progress.advance(task)
                    )
                    runs += [replace(run, method=f"{run.method}, {where}") for run in made]
        model = turns.model
    rows = [row_of(runs, f"{method}, {where}") for method in methods for where in ways]
    show(rows, COLUMNS, width=120)
    result = stamped(
        model=model, draft_model=Path(given.draft_model).stem, threads=default_threads(),
        draft_threads=given.draft_threads, max_tokens=given.max_tokens, ways=rows,
    )  # fmt: skip
    save(result, given.out)


if __name__ == "__main__":
    main()
