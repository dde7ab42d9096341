"""Compares places for a trained head: with its target, on own threads, in PyTorch on a device.

    python -m tools.figures.head_places RUN [--model FILE] [--draft-device cpu] [--per-group 1]
        [--max-tokens 48] [--out FILE.json]

RUN is the folder of `paradecode train head`. All engines run the same target on the native core,
and differ in the head's place. ``in turn`` runs the head on all cores, like the target. ``own
core`` gives the head one core and the target the others. ``one thread`` gives the head one thread
and the target all. ``device`` runs the head in PyTorch on ``--draft-device``. Each engine drafts at
the automatic budget and in chains of four, as in `tools.figures.heads`. The engines take turns
prompt by prompt, with plain decoding in each. Decode speed and output tokens are compared with
plain decoding on all cores. Times are per forward of the target, including forwards of prompts.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode import LLM
from paradecode.backends.native.machine import default_threads
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns, equal, speed_up
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from tools.figures.heads import BUDGETS, read_run, spec_of
from tools.script import Columns, err, options, save, show, stamped

PLAIN = "greedy, in turn"
COLUMNS: Columns = {
    "way": "{way}", "tokens a forward": "{tokens_a_forward:.2f}",
    "target, ms": "{target_ms:.2f}", "draft, ms": "{draft_ms:.2f}", "step, ms": "{step_ms:.2f}",
    "over plain": "{speed_up[value]:.2f}", "95 %": "{speed_up[low]:.2f}-{speed_up[high]:.2f}",
    "equal": "{equal}/{prompts}",
}  # fmt: skip


def row_of(runs: list[PairedRun], way: str) -> dict[str, Any]:
    """Sum up one way of decoding. Times are per target forward, including forwards of prompts."""
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
    parser = options(__doc__, draft_device="cpu", per_group=1, max_tokens=48)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--model")
    given = parser.parse_args()
    head, cores = read_run(given.run), default_threads()
    places = {
        "in turn": {},
        "own core": {"threads": max(1, cores - 1), "draft_threads": 1},
        "one thread": {"draft_threads": 1},
        "device": {"draft_device": given.draft_device},
    }
    methods = {"greedy": "greedy"} | {spec_of(head, budget): budget for budget in BUDGETS}
    runs: list[PairedRun] = []
    with ExitStack() as stack:
        ways = {name: stack.enter_context(LLM(given.model, backend="native", **place))
                for name, place in places.items()}  # fmt: skip
        first = next(iter(ways.values()))
        prompts = first_of_each_group(load_prompts(), given.per_group)
        items = first_turns(prompts, first.chat_tokens, given.max_tokens)
        for llm in ways.values():
            warm_up(llm, methods)
        progress = stack.enter_context(Progress(console=err))
        task = progress.add_task("prompts", total=len(items) * len(ways) * len(methods))
        for number, item in enumerate(items):
            for place in sorted(ways, reverse=number % 2 == 0):
                made = decode_by_turns(
                    ways[place], [item], list(methods), progress=lambda: progress.advance(task)
                )
                runs += [replace(run, method=f"{methods[run.method]}, {place}") for run in made]
        model = first.model
    rows = [row_of(runs, f"{method}, {place}") for method in methods.values() for place in ways]
    assert rows[0]["way"] == PLAIN
    show(rows, COLUMNS, width=120)
    result = stamped(
        model=model, head=head["head"], steps=head["steps"], threads=cores,
        draft_device=given.draft_device, max_tokens=given.max_tokens, ways=rows,
    )  # fmt: skip
    save(result, given.out)


if __name__ == "__main__":
    main()
