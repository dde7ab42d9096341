"""Milliseconds a step outside of the forward, alone in the engine: several steps a call, and one.

    python -m tools.figures.step_cost [--rounds 3] [--max-tokens 96] [--out FILE.json]

Whole requests, the prompt's step included. A stop text that never comes has every step made by the
method itself; it is the way to compare.
"""

from __future__ import annotations

from collections import defaultdict

from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.measure.prompts import first_turns, load_prompts
from tools.script import err, options, save, show, stamped

SETTINGS = [
    (decoder, temperature)
    for decoder in ("greedy", "prompt-lookup", "prompt-lookup(budget=fixed)", "auto")
    for temperature in (0.0, 0.8)
]
NEVER = "\0"
COLUMNS = {
    "decoder": "{decoder}", "temperature": "{temperature}",
    "one a call, ms": "{one:.3f}", "several, ms": "{several:.3f}",
}  # fmt: skip


def main() -> None:
    given = options(__doc__, rounds=3, max_tokens=96).parse_args()
    seconds: dict[tuple[str, float, str], float] = defaultdict(float)
    steps: dict[tuple[str, float, str], int] = defaultdict(int)
    with LLM() as llm, Progress(console=err) as progress:
        items = first_turns(load_prompts(), llm.chat_tokens, given.max_tokens)
        prompts = [list(item.token_ids) for item in items[:: len(items) // 8]]
        llm.generate(prompts, max_tokens=1)  # All settings find the prompts cached.
        for _ in progress.track(range(given.rounds), description="rounds"):
            for decoder, temperature in SETTINGS:
                for way, stop in (("one", NEVER), ("several", ())):
                    params = SamplingParams(
                        max_tokens=given.max_tokens, ignore_eos=True, temperature=temperature,
                        seed=1, stop=stop,
                    )  # fmt: skip
                    for prompt in prompts:
                        stats = llm.generate([prompt], params, decoder=decoder)[0].stats
                        key = decoder, temperature, way
                        steps[key] += stats.forwards
                        spent = stats.prefill_seconds + stats.decode_seconds
                        seconds[key] += spent - stats.target_seconds
    rows = [
        {"decoder": decoder, "temperature": temperature}
        | {
            way: 1e3 * seconds[decoder, temperature, way] / steps[decoder, temperature, way]
            for way in ("one", "several")
        }
        for decoder, temperature in SETTINGS
    ]
    show(rows, COLUMNS)
    save(stamped(rounds=given.rounds, max_tokens=given.max_tokens, settings=rows), given.out)


if __name__ == "__main__":
    main()
