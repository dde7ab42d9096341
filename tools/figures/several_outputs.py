"""Several outputs for one prompt: how likely and how distinct each way's are, and what they cost.

    python -m tools.figures.several_outputs [--model FILE] [--prompts 24] [--max-tokens 16]
        [--temperature 0.7] [--ways "best-of(n=1);best-of(n=8)"] [--out FILE.json]

The first turns of the package's prompts. Ways take turns within a prompt. All outputs are equally
long: nothing ends before ``--max-tokens``. ``likely`` is the mean
log-probability a token of all outputs, ``best`` that of the likeliest; ``distinct-n`` the share of
n-grams of a prompt's outputs that are not there already (Li et al. 2016). Every output is scored by
the model itself, which reads it by itself, at temperature 1.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.prompts import load_prompts
from tools.script import err, options, save, show, stamped

WAYS = (
    "best-of(n=1)", "best-of(n=3)", "superposed(k=3)", "superposed(k=3,alpha=0.54)", "best-of(n=4)",
    "beam(width=4)", "diverse-beam(width=4,groups=2)",
    "diverse-beam(width=4,groups=4)", "diverse-beam(width=4,groups=4,strength=2)",
)  # fmt: skip
MEASURED = ("likely", "best", "distinct_1", "distinct_2", "forwards", "rows", "seconds")
COLUMNS = {
    "way": "{way}", "likely": "{likely:.2f}", "best": "{best:.2f}",
    "distinct-1": "{distinct_1:.2f}", "distinct-2": "{distinct_2:.2f}",
    "forwards": "{forwards:.1f}", "rows": "{rows:.0f}", "seconds": "{seconds:.3f}",
}  # fmt: skip


def main() -> None:
    parser = options(__doc__, model="", prompts=24, max_tokens=16, temperature=0.7)
    parser.add_argument("--ways", default=";".join(WAYS))
    given = parser.parse_args()
    measured: dict[str, list[list[float]]] = defaultdict(list)
    with LLM(given.model or None, decoder=None) as llm:
        asked = load_prompts(None)
        asked = asked[:: max(1, len(asked) // given.prompts)][: given.prompts]
        for number, prompt in enumerate(track(asked, console=err, description="prompts")):
            ids = llm.chat_tokens([{"role": "user", "content": prompt.turns[0]}])
            llm.complete([ids], max_tokens=1)  # The prompt is cached for all ways.
            for way in given.ways.split(";"):
                before, began = llm.engine.forwards, time.perf_counter()
                found = llm.complete(
                    [ids], search=way, temperature=given.temperature, seed=number,
                    max_tokens=given.max_tokens, ignore_eos=True,
                )[0]  # fmt: skip
                spent, forwards = time.perf_counter() - began, llm.engine.forwards - before
                assert found.search is not None
                outputs = [one.token_ids for one in (found, *found.alternatives)]
                means = [one.mean for one in llm.rank(ids, outputs)]
                row = [
                    float(np.mean(means)), max(means), distinct(outputs, 1), distinct(outputs, 2),
                    forwards, found.search.rows, spent,
                ]  # fmt: skip
                measured[way].append(row)
        model = llm.model
    rows = [
        {"way": way, **dict(zip(MEASURED, np.mean(found, axis=0).tolist()))}
        for way, found in measured.items()
    ]
    show(rows, COLUMNS)
    settings = {name: getattr(given, name) for name in ("prompts", "max_tokens", "temperature")}
    save(stamped(model=model, **settings, ways=rows), given.out)


def distinct(outputs: Sequence[Sequence[int]], size: int) -> float:
    """The share of n-grams that are distinct among all n-grams of several outputs."""
    grams = [
        tuple(output[at : at + size]) for output in outputs for at in range(len(output) - size + 1)
    ]
    return len(set(grams)) / max(1, len(grams))


if __name__ == "__main__":
    main()
