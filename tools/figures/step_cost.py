"""Milliseconds a step outside of the forward, by batch: several steps a call, and one.

    python -m tools.figures.step_cost [--model FILE.gguf] [--rounds 3] [--max-tokens 96] \\
        [--batches 1 8 32] [--seconds 60] [--out FILE.json]

Whole requests, the prompt's step included; in a batch those of the output that ends last. A stop
text that never comes has every step made by the method itself; it is the way to compare. After
``--seconds`` no further batch size begins; the same command goes on with those FILE.json lacks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.engine.engine import Limits
from paradecode.prompts import first_turns, load_prompts
from tools.script import Row, err, options, save, saved, show, stamped

SETTINGS = [
    (decoder, temperature)
    for decoder in ("greedy", "prompt-lookup", "prompt-lookup(budget=fixed)", "auto")
    for temperature in (0.0, 0.8)
]
ALONE, BATCHES = 8, (1, 8, 32)
NEVER = "\0"
WAYS = {"one": NEVER, "several": ()}
COLUMNS = {
    "batch": "{batch}", "decoder": "{decoder}", "temperature": "{temperature}",
    "one a call, ms": "{one:.3f}", "several, ms": "{several:.3f}",
}  # fmt: skip


def main() -> None:
    parser = options(__doc__, rounds=3, max_tokens=96, seconds=1e9)
    parser.add_argument("--model")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    given = parser.parse_args()
    begun = time.perf_counter()
    facts = {"model": given.model, "rounds": given.rounds, "max_tokens": given.max_tokens}
    rows = saved(given.out, "settings", facts)
    limits = Limits(kv_tokens=1 << 16)
    with LLM(given.model, limits=limits) as llm, Progress(console=err) as progress:
        items = first_turns(load_prompts(), llm.chat_tokens, given.max_tokens)
        every = [list(item.token_ids) for item in items]
        for batch in [size for size in given.batches if size not in {row["batch"] for row in rows}]:
            if time.perf_counter() - begun > given.seconds:
                err.print(f"the time is over; the same command goes on with batches of {batch}")
                break
            chosen = every[:: len(every) // max(batch, ALONE)]
            groups = [[one] for one in chosen[:ALONE]] if batch == 1 else [chosen[:batch]]
            every_one = [prompt for group in groups for prompt in group]
            llm.complete(every_one, max_tokens=1)  # All settings find the prompts cached.
            rounds = progress.track(range(given.rounds), description=f"batches of {batch}")
            rows += of_batch(llm, batch, groups, rounds, given.max_tokens)
            save(stamped(**facts, settings=rows), given.out)
    show(rows, COLUMNS)


def of_batch(
    llm: LLM, batch: int, groups: list[list[list[int]]], rounds: Iterable[int], max_tokens: int
) -> list[Row]:
    """A row for each setting; the settings take turns."""
    seconds: dict[tuple[object, ...], float] = defaultdict(float)
    steps: dict[tuple[object, ...], int] = defaultdict(int)
    for _ in rounds:
        for decoder, temperature in SETTINGS:
            for way, stop in WAYS.items():
                params = SamplingParams(
                    max_tokens=max_tokens, ignore_eos=True, temperature=temperature, seed=1,
                    stop=stop,
                )  # fmt: skip
                for group in groups:
                    done = llm.complete(group, params, decoder=decoder)
                    stats = max((one.stats for one in done), key=lambda one: one.forwards)
                    steps[decoder, temperature, way] += stats.forwards
                    spent = stats.prefill_seconds + stats.decode_seconds
                    seconds[decoder, temperature, way] += spent - stats.target_seconds
    rows: list[Row] = []
    for decoder, temperature in SETTINGS:
        keys = {way: (decoder, temperature, way) for way in WAYS}
        row = {way: 1e3 * seconds[key] / steps[key] for way, key in keys.items()}
        rows.append({"batch": batch, "decoder": decoder, "temperature": temperature, **row})
    return rows


if __name__ == "__main__":
    main()
