"""Does drafting ever cost speed? The default method, a hopeless one and a good one, batch 1 to 64.

    python -m tools.figures.never_slower [--model FILE.gguf] [--rounds 5] [--max-tokens 96] \\
        [--batches 1 2 4 8] [--out FILE.json]

``auto``, the default, runs on prompts of every kind. ``hopeless`` drafts random tokens and claims
that they are good. ``prompt-lookup`` runs on prompts that copy, under the automatic budget and
under every fixed one. All settings of a batch size run interleaved; the figure is the median over
rounds of the ratio to plain decoding (auto, hopeless) or to the best fixed setting (good).
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.core.sequence import Sequence
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Limits
from paradecode.measure.prompts import Conversation, first_turns, load_prompts
from paradecode.methods.draft.loop import Drafter
from paradecode.methods.draft.method import drafter
from tools.script import err, options, save, show, stamped

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIXED = (0, 2, 4, 6, 8, 12, 16)
COPYING = ("edit", "extraction", "summary", "agent")
COLUMNS = {
    "batch": "{batch}",
    "auto / plain": "{auto_over_plain:.3f}",
    "hopeless / plain": "{hopeless_over_plain:.3f}",
    "good / best fixed": "{good_over_best_fixed:.3f}",
    "best fixed": "{best_fixed}",
    "good / plain": "{good_over_plain:.2f}",
}


@drafter("hopeless", paper="none: a control")
@dataclass
class Hopeless(Drafter):
    """Random tokens, presented as certain."""

    def draft(self, seq: Sequence, limit: int) -> TokenTree:
        noise = np.random.default_rng(len(seq.tokens)).integers(100, 40_000, limit)
        return TokenTree.chain(noise.astype(np.int32), [0.9] * limit)


def spread() -> list[Conversation]:
    """The prompts of the package, a kind of task after the other in turns."""
    groups: dict[str, list[Conversation]] = defaultdict(list)
    for prompt in load_prompts():
        groups[prompt.group].append(prompt)
    return [prompt for row in zip_longest(*groups.values()) for prompt in row if prompt]


def some_of(prompts: list[list[int]], first: int, count: int) -> list[list[int]]:
    """So many prompts from the ``first`` on, and again from the beginning."""
    return [prompts[number % len(prompts)] for number in range(first, first + count)]


def speed(llm: LLM, prompts: list[list[int]], decoder: str | None, params: SamplingParams) -> float:
    """Output tokens per second of one batch."""
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, decoder=decoder)
    return sum(c.stats.generated for c in outputs) / (time.perf_counter() - started)


def main() -> None:
    parser = options(__doc__, rounds=5, max_tokens=96)
    parser.add_argument("--model")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    given = parser.parse_args()
    params = SamplingParams(max_tokens=given.max_tokens, ignore_eos=True)
    hopeless, good = "hopeless(num_speculative_tokens=8)", "prompt-lookup"
    fixed = [f"{good}(budget=fixed,num_speculative_tokens={k})" for k in FIXED]
    mixed = {"plain": None, "auto": "auto"}
    settings = [*mixed, "greedy", hopeless, good, *fixed]
    rows = []
    limits = Limits(batch=max(given.batches), kv_tokens=1 << 16)
    with LLM(given.model, limits=limits) as llm, Progress(console=err) as progress:

        def ids(prompts: list[Conversation]) -> list[list[int]]:
            items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
            return [list(item.token_ids) for item in items]

        copying = [prompt for prompt in load_prompts() if prompt.group in COPYING]
        every, chat = ids(spread()), ids(copying)
        total = len(given.batches) * given.rounds * len(settings)
        task = progress.add_task("rounds", total=total)
        for batch in given.batches:
            speeds: dict[str, list[float]] = {setting: [] for setting in settings}
            for turn in range(given.rounds):
                some, copies = (some_of(prompts, turn * batch, batch) for prompts in (every, chat))
                llm.generate(some + copies, max_tokens=1)  # All settings find the prompts cached.
                for setting in np.random.default_rng(turn).permutation(settings).tolist():
                    prompts = some if setting in mixed else copies
                    decoder = mixed.get(setting, setting)
                    speeds[setting].append(speed(llm, prompts, decoder, params))
                    progress.advance(task)
            typical = {setting: statistics.median(speeds[setting]) for setting in fixed}
            best = max(typical, key=lambda setting: typical[setting])

            def ratio(a: str, b: str, speeds: dict[str, list[float]] = speeds) -> float:
                return statistics.median(x / y for x, y in zip(speeds[a], speeds[b], strict=True))

            rows.append(
                {
                    "batch": batch,
                    "auto_over_plain": ratio("auto", "plain"),
                    "hopeless_over_plain": ratio(hopeless, "greedy"),
                    "good_over_best_fixed": ratio(good, best),
                    "best_fixed": best,
                    "good_over_plain": ratio(good, "greedy"),
                    "tokens_per_second": speeds,
                }
            )
        model = llm.model
    show(rows, COLUMNS)
    facts = {"model": model, "rounds": given.rounds, "max_tokens": given.max_tokens}
    save(stamped(**facts, batches=rows), given.out)


if __name__ == "__main__":
    main()
