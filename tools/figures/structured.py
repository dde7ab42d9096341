"""Tokens per forward under JSON schemas: plain constrained decoding, forced tokens, and lookup.

    python -m tools.figures.structured [--max-tokens 160] [--out bench/results/structured.json]

Counts forwards, so that the machine's load does not matter. Every method's tokens are compared with
the plain ones, and every document is validated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from paradecode import LLM
from tools.script import options, save, stamped

METHODS = {
    "plain": "greedy",
    "forced tokens": "prompt-lookup(min_ngram=32,max_ngram=32,budget=fixed)",  # Finds nothing.
    "forced + lookup": "prompt-lookup(budget=fixed)",
    "forced + lookup, 16 a draft": "prompt-lookup(budget=fixed,num_speculative_tokens=16)",
}

TASKS = Path(__file__).with_suffix(".jsonl")
"""Lines of a text and the schema of what is to be extracted from it."""


def measure(llm: LLM, max_tokens: int) -> dict[str, Any]:
    """Sums over all tasks."""
    totals: dict[str, Any] = {name: {"forwards": 0, "tokens": 0, "equal": 0} for name in METHODS}
    valid = 0
    tasks = [json.loads(line) for line in TASKS.read_text("utf-8").split("\n") if line]
    for number, task in enumerate(tasks, 1):
        message, schema = f"Extract as JSON.\n{task['text']}", task["schema"]
        plain: list[int] = []
        for name, decoder in METHODS.items():
            answer = llm.chat(
                [{"role": "user", "content": message}], max_tokens=max_tokens, decoder=decoder,
                seed=0, constraint={"type": "json_schema", "value": schema},
            )  # fmt: skip
            if name == "plain":
                plain = answer.token_ids
                jsonschema.validate(json.loads(answer.text), schema)
                valid += 1
            total = totals[name]
            total["forwards"] += answer.stats.forwards
            total["tokens"] += len(answer.token_ids)
            total["equal"] += answer.token_ids == plain
        print(f"{number}/{len(tasks)}", file=sys.stderr)
    for total in totals.values():
        total["tokens_per_forward"] = round(total["tokens"] / total["forwards"], 3)
    return {"tasks": len(tasks), "valid": valid, "methods": totals}


def main() -> None:
    given = options(__doc__, max_tokens=160).parse_args()
    with LLM() as llm:
        result = measure(llm, given.max_tokens)
        head = stamped(model=llm.model, backend=llm.backend.name, max_tokens=given.max_tokens)
    print(f"{result['valid']} of {result['tasks']} documents are valid")
    for name, total in result["methods"].items():
        print(
            f"{name:30} {total['tokens_per_forward']:5.2f} tokens a forward, "
            f"{total['forwards']:5} forwards, {total['equal']} outputs equal the plain ones"
        )
    save({**head, **result}, given.out)


if __name__ == "__main__":
    main()
