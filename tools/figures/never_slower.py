"""Does the automatic budget ever cost speed? A hopeless drafter and a good one, batch 1 to 8.

    python -m tools.figures.never_slower [--rounds 5] [--max-tokens 96] [--out FILE.json]

``hopeless`` drafts random tokens and claims that they are good. ``prompt-lookup`` runs on prompts
that copy, under the automatic budget and under every fixed one. All settings of a batch size run
interleaved; the figure is the median over rounds of the ratio to plain decoding (hopeless) or to
the best fixed setting (good).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.measure.prompts import load_prompts
from paradecode.methods.draft.loop import Drafter
from paradecode.methods.draft.method import drafter
from tools.figures.engine import first_turns
from tools.script import err, options, save, show, stamped

FIXED = (0, 2, 4, 6, 8, 12, 16)
COPYING = ("edit", "extraction", "summary", "agent")
COLUMNS = {
    "batch": "{batch}",
    "hopeless / plain": "{hopeless_over_plain:.3f}",
    "good / best fixed": "{good_over_best_fixed:.3f}",
    "best fixed": "{best_fixed}",
    "good / plain": "{good_over_plain:.2f}",
}


@drafter("hopeless", paper="none: a control")
@dataclass
class Hopeless(Drafter):
    """Random tokens, presented as certain."""

    def draft(self, seq, limit):
        noise = np.random.default_rng(len(seq.tokens)).integers(100, 40_000, limit)
        return TokenTree.chain(noise.astype(np.int32), [0.9] * limit)


def speed(llm: LLM, prompts: list[list[int]], decoder: str, params: SamplingParams) -> float:
    """Output tokens per second of one batch."""
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, decoder=decoder)
    return sum(c.stats.generated for c in outputs) / (time.perf_counter() - started)


def main() -> None:
    given = options(__doc__, rounds=5, max_tokens=96).parse_args()
    params = SamplingParams(max_tokens=given.max_tokens, ignore_eos=True)
    hopeless, good = "hopeless(num_speculative_tokens=8)", "prompt-lookup"
    fixed = [f"{good}(budget=fixed,num_speculative_tokens={k})" for k in FIXED]
    settings = ["greedy", hopeless, good, *fixed]
    rows = []
    with LLM() as llm, Progress(console=err) as progress:
        copying = [prompt for prompt in load_prompts() if prompt.group in COPYING]
        chat = [list(item.token_ids) for item in first_turns(llm, copying, given.max_tokens)]
        task = progress.add_task("rounds", total=4 * given.rounds * len(settings))
        for batch in (1, 2, 4, 8):
            speeds: dict[str, list[float]] = {setting: [] for setting in settings}
            for turn in range(given.rounds):
                first = turn * batch % len(chat)
                prompts = (chat + chat)[first : first + batch]
                llm.generate(prompts, max_tokens=1)  # All settings find the prompts cached.
                for setting in np.random.default_rng(turn).permutation(settings).tolist():
                    speeds[setting].append(speed(llm, prompts, setting, params))
                    progress.advance(task)
            typical = {setting: statistics.median(speeds[setting]) for setting in fixed}
            best = max(typical, key=lambda setting: typical[setting])

            def ratio(a: str, b: str, speeds: dict[str, list[float]] = speeds) -> float:
                return statistics.median(x / y for x, y in zip(speeds[a], speeds[b], strict=True))

            rows.append(
                {
                    "batch": batch,
                    "hopeless_over_plain": ratio(hopeless, "greedy"),
                    "good_over_best_fixed": ratio(good, best),
                    "best_fixed": best,
                    "good_over_plain": ratio(good, "greedy"),
                    "tokens_per_second": speeds,
                }
            )
    show(rows, COLUMNS)
    save(stamped(rounds=given.rounds, max_tokens=given.max_tokens, batches=rows), given.out)


if __name__ == "__main__":
    main()
