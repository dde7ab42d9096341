"""Do exact methods give plain decoding's tokens, each of them, on a model of one's own?

    python -m tools.figures.conformance --model FILE.gguf [--draft-model FILE.gguf] \\
        [--per-group 5] [--max-tokens 48] [--batch 8] [--out FILE.json]

The prompts of the package, five of each kind of task, decoded plainly one at a time and by every
method in batches: what shares a forward must not matter either. Greedy, and once more with a seed
at temperature 0.8. The exit status is 1 when an output differs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.measure.machine import digest
from paradecode.measure.prompts import first_of_each_group, first_turns, load_prompts
from tools.script import err, options, save, show, stamped

METHODS = (
    "auto", "prompt-lookup(budget=fixed)", "suffix(budget=fixed)", "token-recycling(budget=fixed)",
    "layer-skip(budget=fixed)",
)  # fmt: skip
"""Fixed budgets draft whatever it costs: what is never drafted is trivially equal."""

WITH_DRAFT = ("draft-model(budget=fixed)", "pearl")
TEMPERATURES = (0.0, 0.8)
COLUMNS = {
    "method": "{method}", "temperature": "{temperature}", "equal": "{equal}/{outputs}",
    "tokens": "{tokens}", "tokens a forward": "{tokens_a_forward:.2f}",
}  # fmt: skip


def decode(llm: LLM, prompts: list[list[int]], params: SamplingParams, **how: Any) -> list[Any]:
    """Completions of one batch; raises what ended one."""
    found = llm.generate(prompts, params, **how)
    for each in found:
        if each.error is not None:
            raise each.error
    return found


def compared(method: str, temperature: float, found: list[Any], plain: list[Any]) -> dict[str, Any]:
    """How many outputs of a method are the plain ones, and where the others part."""
    pairs = [(a.token_ids, b.token_ids) for a, b in zip(found, plain, strict=True)]
    tokens = sum(len(a) for a, _ in pairs)
    return {
        "method": method,
        "temperature": temperature,
        "outputs": len(pairs),
        "equal": sum(a == b for a, b in pairs),
        "tokens": tokens,
        "differing": [number for number, (a, b) in enumerate(pairs) if a != b],
        "tokens_a_forward": tokens / sum(each.stats.forwards for each in found),
    }


def main() -> int:
    parser = options(__doc__, per_group=5, max_tokens=48, batch=8)
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    methods = [*given.methods, *(WITH_DRAFT if given.draft_model else ())]
    rows, digests = [], []
    with LLM(given.model, draft_model=given.draft_model) as llm, Progress(console=err) as progress:
        items = first_turns(
            first_of_each_group(load_prompts(), given.per_group), llm.chat_tokens, given.max_tokens
        )
        prompts = [list(item.token_ids) for item in items]
        task = progress.add_task(
            "outputs", total=len(prompts) * len(TEMPERATURES) * (1 + len(methods))
        )
        for temperature in TEMPERATURES:
            params = SamplingParams(max_tokens=given.max_tokens, temperature=temperature, seed=1)
            plain: list[Any] = []
            for prompt in prompts:
                plain += decode(llm, [prompt], params, decoder=None)
                progress.advance(task)
            outputs = np.concatenate([each.token_ids for each in plain]).astype("<i4")
            digests.append(hashlib.sha256(outputs.tobytes()).hexdigest()[:16])
            for method in methods:
                found: list[Any] = []
                for first in range(0, len(prompts), given.batch):
                    part = prompts[first : first + given.batch]
                    found += decode(llm, part, params, decoder=method, salt=method)
                    progress.advance(task, len(part))
                rows.append(compared(method, temperature, found, plain))
        facts = {"model": llm.model, "backend": llm.backend.name}
    show(rows, COLUMNS)
    result = stamped(
        **facts,
        weights=digest(Path(given.model)) if given.model else None,
        draft_model=given.draft_model and Path(given.draft_model).stem,
        prompts=[item.id for item in items],
        max_tokens=given.max_tokens,
        batch=given.batch,
        plain_outputs=dict(zip(map(str, TEMPERATURES), digests, strict=True)),
        methods=rows,
    )
    save(result, given.out)
    return int(any(row["equal"] < row["outputs"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
