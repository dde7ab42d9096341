"""Measure what it saves to rank all candidates in one forward instead of one by one, at equal
scores.

    python -m tools.figures.ranking [--model FILE] [--context 300] [--candidates 16] [--length 12]
        [--rounds 5] [--out FILE.json]

Contexts are cut from the package's prompts; candidates are the model's own samples. Three ways take
turns: ``packed`` (:meth:`LLM.rank`), ``cached`` (one ranking a candidate, the context in the prefix
cache), and ``whole`` (the same with no cache: each reads its context anew).
"""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.engine.engine import Limits
from paradecode.prompts import load_prompts
from tools.script import err, options, save, show, stamped

COLUMNS = {"way": "{way}", "seconds": "{seconds:.3f}", "times packed": "{times:.2f}"}


def main() -> None:
    given = options(__doc__, model="", context=300, candidates=16, length=12, rounds=5).parse_args()
    text = " ".join(turn for prompt in load_prompts(None) for turn in prompt.turns)
    spent: dict[str, list[float]] = defaultdict(list)
    worst = 0.0
    with (
        LLM(given.model or None) as llm,
        LLM(given.model or None, limits=Limits(prefix_cache=False)) as cold,
    ):
        ids = llm.encode(text)
        for number in track(range(given.rounds), console=err, description="rounds"):
            start = number * given.context
            context = ids[start : start + given.context]
            made = llm.complete(
                [context], n=given.candidates, temperature=1.0, seed=number, ignore_eos=True,
                max_tokens=given.length,
            )[0]  # fmt: skip
            candidates = [one.token_ids for one in (made, *made.alternatives)]
            scores: dict[str, dict[int, tuple[float, ...]]] = {}
            for way in ("packed", "cached", "whole"):
                llm.rank(context, candidates[:1])  # The context is cached for the first two.
                began = time.perf_counter()
                if way == "packed":
                    ranked = llm.rank(context, candidates)
                    scores[way] = {one.index: one.logprobs for one in ranked}
                else:
                    one_by_one = llm if way == "cached" else cold
                    each = [one_by_one.rank(context, [one])[0] for one in candidates]
                    scores[way] = {at: one.logprobs for at, one in enumerate(each)}
                spent[way].append(time.perf_counter() - began)
            for way in ("cached", "whole"):
                gaps = [
                    abs(np.subtract(scores["packed"][at], scores[way][at])).max()
                    for at in scores[way]
                ]
                worst = max(worst, *gaps)
        model = llm.model
    packed = float(np.median(spent["packed"]))
    rows = [
        {"way": way, "seconds": float(np.median(times)), "times": float(np.median(times)) / packed}
        for way, times in spent.items()
    ]
    show(rows, COLUMNS)
    err.print(f"largest difference of a log-probability: {worst:g}")
    asked = {name: getattr(given, name) for name in ("context", "candidates", "length", "rounds")}
    save(stamped(model=model, **asked, largest_difference=worst, ways=rows), given.out)


if __name__ == "__main__":
    main()
