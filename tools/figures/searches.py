"""What each search gains and costs: right answers, tokens, rows and seconds beside one sample.

    python -m tools.figures.searches [--model FILE] [--terms 2] [--largest 12] [--out FILE.json]

Sums of numbers, of a size at which one sample of the model is right now and then. Searches take
turns within a task. ``checker`` is a scorer that knows the right answer: what
the samples could give at best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.search.majority import final_answer
from tools.script import err, options, save, show, stamped

SEARCHES = (
    ("one sample", None), ("best-of(n=8)", None), ("best-of(n=8), checker", "best-of(n=8)"),
    ("majority(n=8)", None), ("majority(n=8,votes=weighted)", None), ("ffs(n=8)", None),
    ("ffs(n=8,pick=last,keep=8)", None), ("a-star(k=4,step_tokens=32,budget=1024)", None),
)  # fmt: skip
"""Name -> the search, if the name is none."""
COLUMNS = {
    "search": "{search}", "right": "{right:.0%}", "tokens": "{tokens:.0f}", "rows": "{rows:.0f}",
    "seconds": "{seconds:.2f}", "times one sample": "{times:.2f}",
}  # fmt: skip


def main() -> None:
    parser = options(__doc__, model="", tasks=40, terms=2, largest=12, max_tokens=160)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    right: dict[str, list[bool]] = defaultdict(list)
    cost: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with LLM(given.model or None) as llm:
        for number in track(range(given.tasks), console=err, description="tasks"):
            terms = random.integers(1, given.largest + 1, given.terms).tolist()
            asked = f"What is {' + '.join(map(str, terms))}?"
            prompt = llm.chat_tokens([{"role": "user", "content": asked}])
            answer = str(sum(terms))
            for name, search in SEARCHES:
                found = llm.generate(
                    [prompt], search=_search(name, search), temperature=0.7, seed=number,
                    max_tokens=given.max_tokens, scorer=_checker(answer) if search else None,
                )[0]  # fmt: skip
                took = found.search
                assert took is not None
                right[name].append(final_answer(found.text) == answer)
                cost[name].append((took.tokens, took.rows, took.seconds))
        model = llm.model
    one = np.mean([seconds for _, _, seconds in cost[SEARCHES[0][0]]])
    rows: list[dict[str, Any]] = []
    for name, _ in SEARCHES:
        tokens, made, seconds = np.mean(cost[name], axis=0).tolist()
        rows.append(
            {
                "search": name, "right": float(np.mean(right[name])), "tokens": tokens,
                "rows": made, "seconds": seconds, "times": seconds / one,
            }
        )  # fmt: skip
    show(rows, COLUMNS)
    asked_for = {name: getattr(given, name) for name in ("tasks", "terms", "largest", "max_tokens")}
    save(stamped(model=model, **asked_for, searches=rows), given.out)


def _search(name: str, search: str | None) -> str:
    return "best-of(n=1)" if name == "one sample" else search or name


def _checker(answer: str) -> Callable[[str, Sequence[str]], list[float]]:
    return lambda prompt, texts: [float(final_answer(text) == answer) for text in texts]


if __name__ == "__main__":
    main()
