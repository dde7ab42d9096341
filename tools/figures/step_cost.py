"""Milliseconds a step outside of the forward, by batch: several steps a call, and one.

    python -m tools.figures.step_cost [--model FILE.gguf] [--rounds 3] [--max-tokens 96] \\
        [--batches 1 8 32] [--out FILE.json]

Whole requests, the prompt's step included; in a batch those of the output that ends last. A stop
text that never comes has every step made by the method itself; it is the way to compare.
"""

from __future__ import annotations

from collections import defaultdict

from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.engine.engine import Limits
from paradecode.measure.prompts import first_turns, load_prompts
from tools.script import err, options, save, show, stamped

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
    parser = options(__doc__, rounds=3, max_tokens=96)
    parser.add_argument("--model")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    given = parser.parse_args()
    seconds: dict[tuple[object, ...], float] = defaultdict(float)
    steps: dict[tuple[object, ...], int] = defaultdict(int)
    limits = Limits(kv_tokens=1 << 16)
    with LLM(given.model, limits=limits) as llm, Progress(console=err) as progress:
        items = first_turns(load_prompts(), llm.chat_tokens, given.max_tokens)
        every = [list(item.token_ids) for item in items]
        llm.generate(every, max_tokens=1)  # All settings find the prompts cached.
        for batch in given.batches:
            chosen = every[:: len(every) // max(batch, ALONE)]
            groups = [[one] for one in chosen[:ALONE]] if batch == 1 else [chosen[:batch]]
            for _ in progress.track(range(given.rounds), description=f"batches of {batch}"):
                for decoder, temperature in SETTINGS:
                    for way, stop in WAYS.items():
                        params = SamplingParams(
                            max_tokens=given.max_tokens, ignore_eos=True, temperature=temperature,
                            seed=1, stop=stop,
                        )  # fmt: skip
                        for group in groups:
                            done = llm.generate(group, params, decoder=decoder)
                            stats = max((one.stats for one in done), key=lambda one: one.forwards)
                            key = batch, decoder, temperature, way
                            steps[key] += stats.forwards
                            spent = stats.prefill_seconds + stats.decode_seconds
                            seconds[key] += spent - stats.target_seconds
    rows = [
        {"batch": batch, "decoder": decoder, "temperature": temperature}
        | {
            way: 1e3 * seconds[batch, decoder, temperature, way]
            / steps[batch, decoder, temperature, way]
            for way in WAYS
        }
        for batch in given.batches
        for decoder, temperature in SETTINGS
    ]  # fmt: skip
    show(rows, COLUMNS)
    facts = {"model": given.model, "rounds": given.rounds, "max_tokens": given.max_tokens}
    save(stamped(**facts, settings=rows), given.out)


if __name__ == "__main__":
    main()
