"""Tests whether drafting ever costs speed, for three methods at batch sizes from 1 to 64.

    python -m tools.figures.never_slower [--model FILE.gguf] [--rounds 5] [--max-tokens 96] \\
        [--batches 1 2 4 8] [--fixed 0 4 8] [--outputs 16] [--seconds 240] [--out FILE.json]

``auto``, the default, runs on prompts of every kind. ``hopeless`` drafts random tokens and claims
that they are good. ``prompt-lookup`` runs on prompts that copy, under the automatic budget and
under every fixed budget. All settings of a batch size run interleaved. Each figure is the median
over rounds of the ratio to plain decoding (auto, hopeless) or to the best fixed setting (good).
Plain decoding runs twice in each round: auto is compared with the mean of both runs, and the ratio
between them shows the noise. A round of small batches decodes several batches one after the other,
with 16 outputs in all. After ``--seconds`` no further batch size begins; the same command resumes
with the batch sizes that FILE.json does not have.
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
from paradecode.core.decoder import TokenSequence
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Limits
from paradecode.methods.draft.loop import Drafter, Needs, drafter
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.prompts import Conversation, first_turns, load_prompts
from tools.script import Row, err, options, save, saved, show, stamped

BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIXED = (0, 2, 4, 6, 8, 12, 16)
HOPELESS, GOOD = "hopeless(num_speculative_tokens=8)", "prompt-lookup"
COPYING = ("edit", "extraction", "summary", "agent")
COLUMNS = {
    "batch": "{batch}",
    "auto / plain": "{auto_over_plain:.3f}",
    "plain / plain": "{plain_over_plain:.3f} ({least_noise:.3f} to {most_noise:.3f})",
    "hopeless / plain": "{hopeless_over_plain:.3f}",
    "good / best fixed": "{good_over_best_fixed:.3f}",
    "best fixed": "{best_fixed}",
    "good / plain": "{good_over_plain:.2f}",
}


@drafter("hopeless", paper="none: a control")
@dataclass
class Hopeless(Drafter):
    """A drafter that proposes random tokens and claims that they are certain."""

    needs = Needs(rests=True)

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        noise = np.random.default_rng(len(seq.tokens)).integers(100, 40_000, limit)
        return TokenTree.chain(noise.astype(np.int32), [0.9] * limit)


def spread() -> list[Conversation]:
    """Return the package's prompts, ordered so that the groups take turns."""
    groups: dict[str, list[Conversation]] = defaultdict(list)
    for prompt in load_prompts():
        groups[prompt.group].append(prompt)
    return [prompt for row in zip_longest(*groups.values()) for prompt in row if prompt]


def some_of(prompts: list[list[int]], first: int, count: int) -> list[list[int]]:
    """Return ``count`` prompts from index ``first`` on; after the last prompt follows the first."""
    return [prompts[number % len(prompts)] for number in range(first, first + count)]


def speed(
    llm: LLM, prompts: list[list[int]], batch: int, decoder: str | None, params: SamplingParams
) -> float:
    """Decode batches of ``batch`` prompts one after the other; returns output tokens per second."""
    started, tokens = time.perf_counter(), 0
    for first in range(0, len(prompts), batch):
        outputs = llm.complete(prompts[first : first + batch], params, decoder=decoder)
        tokens += sum(output.stats.generated for output in outputs)
    return tokens / (time.perf_counter() - started)


def figures(batch: int, measured: dict[str, list[float]], fixed: list[str]) -> Row:
    """Return medians of ratios; each ratio compares two settings in the same round."""
    plain = zip(measured["plain"], measured["plain again"], strict=True)
    speeds = {**measured, "both": [statistics.mean(two) for two in plain]}

    def ratios(a: str, b: str) -> list[float]:
        return [x / y for x, y in zip(speeds[a], speeds[b], strict=True)]

    def ratio(a: str, b: str) -> float:
        return statistics.median(ratios(a, b))

    noise = ratios("plain again", "plain")
    best = max(fixed, key=lambda setting: statistics.median(speeds[setting]))
    return {
        "batch": batch,
        "auto_over_plain": ratio("auto", "both"),
        "plain_over_plain": statistics.median(noise),
        "least_noise": min(noise),
        "most_noise": max(noise),
        "hopeless_over_plain": ratio(HOPELESS, "greedy"),
        "good_over_best_fixed": ratio(GOOD, best),
        "best_fixed": best,
        "good_over_plain": ratio(GOOD, "greedy"),
        "tokens_per_second": measured,
    }


def main() -> None:
    parser = options(__doc__, rounds=5, max_tokens=96, outputs=16, seconds=1e9)
    parser.add_argument("--model")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--fixed", type=int, nargs="*", default=FIXED)
    given = parser.parse_args()
    begun = time.perf_counter()
    params = SamplingParams(max_tokens=given.max_tokens, ignore_eos=True, seed=0)
    fixed = [f"{GOOD}(budget=fixed,num_speculative_tokens={k})" for k in given.fixed]
    mixed = {"plain": None, "plain again": None, "auto": "auto"}
    settings = [*mixed, "greedy", HOPELESS, GOOD, *fixed]
    limits = Limits(batch=max(given.batches), kv_tokens=1 << 16)
    with LLM(given.model, limits=limits) as llm, Progress(console=err) as progress:

        def ids(prompts: list[Conversation]) -> list[list[int]]:
            items = first_turns(prompts, llm.chat_tokens, given.max_tokens)
            return [list(item.token_ids) for item in items]

        warm_up(llm, ["auto", "greedy", HOPELESS, GOOD, *fixed])
        facts = {"model": llm.model, "outputs": given.outputs, "fixed": list(given.fixed)}
        facts |= {"rounds": given.rounds, "max_tokens": given.max_tokens}
        rows = saved(given.out, "batches", facts)
        known = {row["batch"] for row in rows}
        copying = [prompt for prompt in load_prompts() if prompt.group in COPYING]
        every, chat = ids(spread()), ids(copying)
        for batch in [size for size in given.batches if size not in known]:
            if time.perf_counter() - begun > given.seconds:
                err.print(f"the time is over; the same command goes on with batches of {batch}")
                break
            speeds: dict[str, list[float]] = {setting: [] for setting in settings}
            lists = max(1, given.outputs // batch)
            turns = progress.track(range(given.rounds), description=f"batches of {batch}")
            for turn in turns:
                first = turn * lists * batch
                some, copies = (some_of(all_, first, lists * batch) for all_ in (every, chat))
                # Then all settings find the prompts cached.
                llm.complete(some + copies, max_tokens=1)
                for setting in np.random.default_rng(turn).permutation(settings).tolist():
                    prompts = some if setting in mixed else copies
                    decoder = mixed.get(setting, setting)
                    speeds[setting].append(speed(llm, prompts, batch, decoder, params))
            rows.append(figures(batch, speeds, fixed))
            save(stamped(**facts, batches=rows), given.out)
    show(rows, COLUMNS)


if __name__ == "__main__":
    main()
