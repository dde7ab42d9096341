"""Tests whether exact methods give plain decoding's tokens on a model of one's own.

    python -m tools.figures.conformance [RUN...] [--model FILE.gguf] [--draft-model FILE.gguf] \\
        [--per-group 5] [--max-tokens 48] [--batch 8] [--out FILE.json]

Five prompts of each group are decoded plainly one at a time, and by every method in batches,
because other requests in a forward must not matter either. This is done greedily, and once more
with a seed at temperature 0.8. A RUN is the folder of `paradecode train head`; its head drafts
chains of four.

The exit status is 1 if an output differs. It is also 1 if fewer than FEWEST draft tokens of a
method were accepted, since a method that drafts nothing is plain decoding; methods in RESTING are
exempt. Every line is saved at once, and the same command resumes an interrupted run.
"""

from __future__ import annotations

import hashlib
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from paradecode import LLM, SamplingParams
from paradecode.testing.conformance import FEWEST
from paradecode_lab.measure.machine import digest
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.training.heads.training import HEAD
from tools.figures.heads import read_run, spec_of
from tools.script import err, options, save, saved, show, stamped

METHODS = (
    "auto", "prompt-lookup(budget=fixed)", "suffix(budget=fixed)", "token-recycling(budget=fixed)",
    "layer-skip(budget=fixed)", "aded(budget=fixed)", "copyspec(budget=fixed)", "del(budget=fixed)",
    "input-copy(budget=fixed)", "jacobi(budget=fixed)", "lookahead(budget=fixed)",
    "lookup-tree(budget=fixed)", "retrieval(budget=fixed)", "stand(budget=fixed)",
    "swift(budget=fixed)", "suffix+token-recycling(budget=fixed)",
    "triforce(guesses=0,keys=64,recent=16,budget=fixed)",
)  # fmt: skip
"""Methods under test.

A fixed budget drafts at any cost, because equality without drafts is trivial.
"""

RESTING = {"auto": "in a batch its rows hold up the others, so it hardly drafts"}
"""Methods that may have fewer accepted draft tokens than FEWEST, and why."""

WITH_DRAFT = ("draft-model(budget=fixed)", "pearl")
TEMPERATURES = (0.0, 0.8)
COLUMNS = {
    "method": "{method}", "temperature": "{temperature}", "equal": "{equal}/{outputs}",
    "tokens": "{tokens}", "tokens a forward": "{tokens_a_forward:.2f}",
    "drafted": "{drafted}", "accepted": "{accepted}", "": "{fails}",
}  # fmt: skip


def decode(llm: LLM, prompts: list[list[int]], params: SamplingParams, **how: Any) -> list[Any]:
    """Return the completions of one batch; raises the error that ended one of them."""
    found = llm.complete(prompts, params, **how)
    for each in found:
        if each.error is not None:
            raise each.error
    return found


def compared(method: str, temperature: float, found: list[Any], plain: list[Any]) -> dict[str, Any]:
    """Compare a method's outputs with the plain ones, and return the table's line.

    Its ``fails`` says why the method fails; it is empty if it passes.
    """
    pairs = [(a.token_ids, b.token_ids) for a, b in zip(found, plain, strict=True)]
    tokens = sum(len(a) for a, _ in pairs)
    equal, accepted = sum(a == b for a, b in pairs), sum(each.stats.accepted for each in found)
    fails = "" if equal == len(pairs) else "outputs differ"
    if accepted < FEWEST and method not in RESTING:
        fails = fails or f"fewer than {FEWEST} draft tokens accepted"
    return {
        "method": method,
        "temperature": temperature,
        "outputs": len(pairs),
        "equal": equal,
        "tokens": tokens,
        "differing": [number for number, (a, b) in enumerate(pairs) if a != b],
        "tokens_a_forward": tokens / sum(each.stats.forwards for each in found),
        "drafted": sum(each.stats.drafted for each in found),
        "accepted": accepted,
        "fails": fails,
    }


def digested(found: list[Any]) -> str:
    """Return a short hash of all tokens of some outputs."""
    tokens = np.concatenate([each.token_ids for each in found]).astype("<i4")
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]


def main() -> int:
    parser = options(__doc__, per_group=5, max_tokens=48, batch=8)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    # Name of a line -> the method. Names must not have the folders of this machine.
    methods = {method: method for method in given.methods}
    methods |= {method: method for method in WITH_DRAFT if given.draft_model}
    for folder in given.runs:
        run = read_run(folder)
        spec = spec_of(run, "fixed")
        methods[spec.replace(str(folder / HEAD), run["head"])] = spec
    plain: dict[float, list[Any]] = {}
    with LLM(given.model, draft_model=given.draft_model) as llm, Progress(console=err) as progress:
        items = first_turns(
            first_of_each_group(load_prompts(), given.per_group), llm.chat_tokens, given.max_tokens
        )
        prompts = [list(item.token_ids) for item in items]
        task = progress.add_task(
            "outputs", total=len(prompts) * len(TEMPERATURES) * (1 + len(methods))
        )
        asked = {
            temperature: SamplingParams(
                max_tokens=given.max_tokens, temperature=temperature, seed=1
            )
            for temperature in TEMPERATURES
        }
        for temperature, params in asked.items():
            plain[temperature] = []
            for prompt in prompts:
                plain[temperature] += decode(llm, [prompt], params, decoder=None)
                progress.advance(task)
        facts = {
            "model": llm.model,
            "backend": llm.backend.name,
            "weights": digest(Path(given.model)) if given.model else None,
            "draft_model": given.draft_model and Path(given.draft_model).stem,
            "prompts": [item.id for item in items],
            "max_tokens": given.max_tokens,
            "batch": given.batch,
            "plain_outputs": {str(at): digested(found) for at, found in plain.items()},
        }
        rows = saved(given.out, "methods", facts)
        known = {(row["method"], row["temperature"]) for row in rows}
        for (temperature, params), (name, method) in product(asked.items(), methods.items()):
            found: list[Any] = []
            for first in range(0, len(prompts), given.batch):
                part = prompts[first : first + given.batch]
                if (name, temperature) not in known:
                    found += decode(llm, part, params, decoder=method, salt=name)
                progress.advance(task, len(part))
            if found:
                rows.append(compared(name, temperature, found, plain[temperature]))
                save(stamped(**facts, methods=rows), given.out)
    show(rows, COLUMNS)
    return int(any(row["fails"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
