"""Does a head cost speed in batches? Lists of several prompts with it and plainly, in turns.

    python -m tools.figures.head_batches --model FILE.gguf --methods "mtp(head='out/run/head')" \\
        [--batches 1 4 8] [--rounds 5] [--max-tokens 32] [--out FILE.json]

A round answers the same prompts, one of each group, in lists of ``batch``, by every method; the
order turns from round to round, and plain decoding runs twice. The ratios are of whole lists,
prompts included: the median over rounds, and the least and the most. Every output is compared with
plain decoding's. Each method has a tenant of its own in each round, so nothing is learned before,
and a first round, which reads heads and copies rows, is not counted.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.engine.engine import Limits
from paradecode.prompts import first_of_each_group, first_turns, load_prompts
from tools.script import err, options, save, show, stamped

PLAIN, AGAIN = "greedy", "greedy, again"
COLUMNS = {
    "batch": "{batch}", "method": "{method}", "tokens a forward": "{tokens_a_forward:.2f}",
    "over plain": "{median:.2f} ({least:.2f} to {most:.2f})", "equal": "{equal}/{outputs}",
}  # fmt: skip


def lists(llm: LLM, prompts: list[list[int]], batch: int, method: str, salt: str, most: int) -> Any:
    """Seconds, outputs and statistics of all prompts, ``batch`` at a time."""
    params, made = SamplingParams(max_tokens=most, temperature=0.0, seed=0), []
    started = time.perf_counter()
    for first in range(0, len(prompts), batch):
        some = prompts[first : first + batch]
        made += llm.complete(some, params, decoder=method.partition(",")[0] if method == AGAIN
                             else method, salt=f"{salt} {method}")  # fmt: skip
    seconds = time.perf_counter() - started
    for one in made:
        if one.error is not None:
            raise one.error
    return seconds, [one.token_ids for one in made], [one.stats for one in made]


def main() -> None:
    parser = options(__doc__, rounds=5, max_tokens=32)
    parser.add_argument("--model")
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 4, 8])
    parser.add_argument("--methods", nargs="+", required=True)
    given = parser.parse_args()
    methods, rows = [PLAIN, AGAIN, *given.methods], []
    limits = Limits(batch=max(given.batches), prefix_cache=False)
    with LLM(given.model, backend="native", limits=limits) as llm, Progress(console=err) as bar:
        items = first_turns(first_of_each_group(load_prompts(), 1), llm.chat_tokens, None)
        task = bar.add_task("lists", total=len(given.batches) * (given.rounds + 1) * len(methods))
        for batch in given.batches:
            prompts = [list(item.token_ids) for item in items][: len(items) // batch * batch]
            times: dict[str, list[float]] = {method: [] for method in methods}
            outputs, stats = {}, {}
            for turn in range(given.rounds + 1):
                at = turn % len(methods)
                for method in [*methods[at:], *methods[:at]]:
                    salt = f"{batch} {turn}"
                    found = lists(llm, prompts, batch, method, salt, given.max_tokens)
                    seconds, outputs[method], stats[method] = found
                    times[method] += [seconds] * (turn > 0)
                    bar.advance(task)
            for method in methods[1:]:
                ratios = [p / t for p, t in zip(times[PLAIN], times[method])]
                same = [a == b for a, b in zip(outputs[method], outputs[PLAIN])]
                mine = stats[method]
                rows.append({
                    "batch": batch, "method": method, "median": statistics.median(ratios),
                    "least": min(ratios), "most": max(ratios), "equal": sum(same),
                    "outputs": len(same),
                    "tokens_a_forward": sum(s.generated for s in mine)
                    / sum(s.forwards for s in mine),
                })  # fmt: skip
        facts = {"model": llm.model, "backend": llm.backend.name}
    show(rows, COLUMNS, width=150)
    save(
        stamped(**facts, max_tokens=given.max_tokens, rounds=given.rounds, methods=rows), given.out
    )


if __name__ == "__main__":
    main()
