"""Is what replay predicts what the engine does? Acceptance and speed, method by method.

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
from collections import defaultdict
from dataclasses import asdict, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.core.trace import Stats, Step
from paradecode.engine.engine import Limits
from paradecode.engine.request import GenerationRequest
from paradecode.measure.prompts import Conversation, Item, load_prompts
from paradecode.measure.replay import Recording, ReplayOutcome, play, record
from paradecode.measure.serving import finish
from paradecode.methods.registry import parse
from tools.figures.engine import calibrate, first_turns
from tools.script import err, options, save, show, stamped

SPECS = (
    "prompt-lookup", "prompt-lookup(budget=fixed)", "copyspec", "suffix", "input-copy", "retrieval",
    "aded", "stand", "rasd", "token-recycling", "jacobi", "lookahead",
    "token-recycling(budget=fixed,num_speculative_tokens=4)", "suffix+prompt-lookup",
    "suffix+token-recycling",
)  # fmt: skip
PLAIN = "greedy"
COLUMNS = {
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


def sample(count: int, llm: LLM, max_tokens: int) -> list[Item]:
    """``count`` first turns, the first of every group before the second of any."""
    groups: dict[str, list[Conversation]] = defaultdict(list)
    for prompt in load_prompts():
        groups[prompt.group].append(prompt)
    in_turn = [prompt for rank in zip_longest(*groups.values()) for prompt in rank if prompt]
    return first_turns(llm, in_turn[:count], max_tokens)


def in_engine(
    llm: LLM, recording: Recording, specs: list[str], rounds: int
) -> dict[str, list[list[tuple[Stats, list[Step]]]]]:
    """Method -> round -> what each request took. Stores start empty in every round."""
    found: dict[str, list[list[tuple[Stats, list[Step]]]]] = {
        spec: [[] for _ in range(rounds)] for spec in specs
    }
    with Progress(console=err) as progress:
        task = progress.add_task("engine", total=rounds * len(recording.requests))
        for turn in range(rounds):
            for number, request in enumerate(recording.requests):
                for spec in np.roll(specs, -number).tolist():
                    params = replace(recording.params, max_tokens=request.max_tokens)
                    asked = GenerationRequest(
                        request.prompt, parse(spec), params, salt=f"{spec} {turn}"
                    )
                    sequence = finish(llm.engine, asked)
                    if sequence.output != request.output.tolist():
                        raise SystemExit(f"{spec} differs from plain decoding on {request.id}")
                    found[spec][turn].append((sequence.stats, sequence.trace))
                progress.advance(task)
    return found


def compared(
    spec: str,
    rounds: list[list[tuple[Stats, list[Step]]]],
    plain: list[list[tuple[Stats, list[Step]]]],
    outcome: ReplayOutcome,
    base: ReplayOutcome,
) -> dict[str, Any]:
    """Measured and predicted figures of one method."""
    totals = outcome.totals()

    def speed(runs: list[tuple[Stats, list[Step]]]) -> float:
        tokens = sum(stats.generated - stats.first_tokens for stats, _ in runs)
        return tokens / sum(stats.decode_seconds for stats, _ in runs)

    equal = sum(
        [(step.drafted, step.accepted) for step in trace]
        == [(step.tokens, step.accepted) for step in played.steps]
        for (_, trace), played in zip(rounds[0], outcome.requests, strict=True)
    )
    drafts = sum(stats.drafts for stats, _ in rounds[0])
    accepted = sum(stats.accepted for stats, _ in rounds[0])
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
            "forwards": sum(stats.forwards for stats, _ in rounds[0]),
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
        recording = record(llm, sample(given.prompts, llm, given.max_tokens), params)
        measured = in_engine(llm, recording, specs, given.rounds)
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
