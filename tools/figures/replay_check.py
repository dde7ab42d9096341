"""Does replay predict what the engine does? Compares acceptance and speed, method by method.

    python -m tools.figures.replay_check [--prompts 24] [--max-tokens 64] [--temperature 0]
                                 [--rounds 1] [--out bench/results/replay.json] [SPEC ...]

Measures the cost curve, records the prompts, then runs every method in the engine, one after the
other on each prompt in an order that turns, each as a tenant of its own, and plays the same
methods on the recording. ``equal`` counts the requests whose every step drafted and kept the same
number of tokens. All prompts run uncached, as in replay, so that the automatic budget sees equal
forwards.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import Any

from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.engine.engine import Limits
from paradecode.prompts import Item, by_turns, first_turns, load_prompts
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.paired import PairedRun, decode_by_turns
from paradecode_lab.measure.replay import Recording, ReplayOutcome, play, record
from tools.figures.engine import calibrate
from tools.script import Columns, err, options, save, show, stamped

SPECS = (
    "prompt-lookup", "prompt-lookup(budget=fixed)", "copyspec", "suffix", "input-copy", "retrieval",
    "aded", "stand", "rasd", "token-recycling", "jacobi", "lookahead",
    "token-recycling(budget=fixed,num_speculative_tokens=4)", "suffix+prompt-lookup",
    "suffix+token-recycling",
)  # fmt: skip
PLAIN = "greedy"
COLUMNS: Columns = {
    "method": "{method}",
    "exact": lambda row: "yes" if row["exact"] else "no",
    "equal": "{equal}/{requests}",
    "length": "{measured[mean_acceptance_length]:.3f}",
    "length, predicted": "{predicted[mean_acceptance_length]:.3f}",
    "forwards": "{measured[forwards]}",
    "forwards, predicted": "{predicted[forwards]}",
    "tokens/s": "{measured[tokens_per_second]:.0f}",
    "tokens/s, predicted": "{predicted[tokens_per_second]:.0f}",
    "over plain": "{measured[speed_up]:.3f}",
    "over plain, predicted": "{predicted[speed_up]:.3f}",
    "error": "{speed_up_error:+.1%}",
}


def in_engine(
    llm: LLM, recording: Recording, items: list[Item], specs: list[str], rounds: int
) -> dict[str, list[list[PairedRun]]]:
    """Method -> round -> the run of each prompt. Stores start empty in every round."""
    outputs = {request.id: tuple(request.output.tolist()) for request in recording.requests}
    found: dict[str, list[list[PairedRun]]] = {spec: [] for spec in specs}
    warm_up(llm, specs)
    with Progress(console=err) as progress:
        task = progress.add_task("engine", total=rounds * len(items) * len(specs))
        for turn in range(rounds):
            runs = decode_by_turns(
                llm, items, specs, sampling=recording.params, salt=str(turn),
                progress=lambda: progress.advance(task),
            )  # fmt: skip
            for run in runs:
                if run.output != outputs[run.prompt]:
                    raise SystemExit(f"{run.method} differs from plain decoding on {run.prompt}")
            for spec in specs:
                found[spec].append([run for run in runs if run.method == spec])
    return found


def compared(
    spec: str,
    rounds: list[list[PairedRun]],
    plain: list[list[PairedRun]],
    outcome: ReplayOutcome,
    base: ReplayOutcome,
) -> dict[str, Any]:
    """Measured and predicted figures of one method."""
    totals = outcome.totals()

    def speed(runs: list[PairedRun]) -> float:
        return sum(run.later for run in runs) / sum(run.stats.decode_seconds for run in runs)

    equal = sum(
        [(step.drafted, step.accepted) for step in run.trace]
        == [(step.tokens, step.accepted) for step in played.steps]
        for run, played in zip(rounds[0], outcome.requests, strict=True)
    )
    drafts = sum(run.stats.drafts for run in rounds[0])
    accepted = sum(run.stats.accepted for run in rounds[0])
    measured = statistics.median(
        speed(runs) / speed(ground) for runs, ground in zip(rounds, plain, strict=True)
    )
    predicted = outcome.speed_up(base)
    return {
        "method": spec,
        "exact": outcome.exact,
        "requests": len(outcome.requests),
        "equal": equal,
        "measured": {
            "accepted": accepted,
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
            "forwards": sum(run.stats.forwards for run in rounds[0]),
            "tokens_per_second": statistics.median(speed(runs) for runs in rounds),
            "speed_up": measured,
        },
        "predicted": {
            "accepted": totals.accepted,
            "mean_acceptance_length": totals.mean_acceptance_length,
            "forwards": totals.forwards,
            "tokens_per_second": totals.tokens_per_second,
            "speed_up": predicted,
        },
        "speed_up_error": predicted / measured - 1,
    }


def main() -> None:
    parser = options(__doc__, prompts=24, max_tokens=64, temperature=0.0, rounds=1)
    parser.add_argument("specs", nargs="*", default=SPECS)
    given = parser.parse_args()
    specs = [PLAIN, *given.specs]
    params = SamplingParams(temperature=given.temperature, seed=1)
    with LLM(backend="native", limits=Limits(prefix_cache=False)) as llm:
        curve = calibrate(llm)
        firsts = first_turns(load_prompts(), llm.chat_tokens, given.max_tokens)
        items = by_turns(firsts)[: given.prompts]
        recording = record(llm, items, params)
        measured = in_engine(llm, recording, items, specs, given.rounds)
        model, backend = llm.model, llm.backend.name
    started = time.perf_counter()
    outcomes = {spec: play(recording, spec) for spec in specs}
    seconds = time.perf_counter() - started
    rows = [
        compared(spec, measured[spec], measured[PLAIN], outcomes[spec], outcomes[PLAIN])
        for spec in specs
    ]
    show(rows, COLUMNS, width=190)
    print(f"{len(specs)} methods replayed in {seconds:.1f} s; {recording.timing}")
    wrong = [row["method"] for row in rows if row["exact"] and row["equal"] < row["requests"]]
    result = stamped(
        model=model,
        backend=backend,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        rounds=given.rounds,
        prompts=len(recording.requests),
        curve=asdict(curve),
        timing=asdict(recording.timing),
        replay_seconds=seconds,
        methods=rows,
    )
    save(result, given.out)
    if wrong:
        raise SystemExit(f"replay is wrong about {', '.join(wrong)}")


if __name__ == "__main__":
    main()
