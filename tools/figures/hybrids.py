"""Hybrids of both families on the models that ship: what they save, and what they cost.

    python -m tools.figures.hybrids [--instances 4] [--rounds 3] [--batch 1] [--max-tokens 96]
        [--out FILE.json]

``deer``: the autoregressive model, and the diffusion model drafts for it. ``assd``: the diffusion
model by its own joint density. Held-out instances of every task, decoded in batches; ways take
turns within a batch. ``equal`` counts outputs that are token by token those of the first way of the
same group. Rows are the target's, without those of the draft model. Tokens a second are those of
whole requests, prompts included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.progress import track

from paradecode import LLM
from paradecode.measure.tasks.tasks import TASKS
from tools.script import err, options, save, show, stamped

TARGET, DRAFT = "paradecode/tiny-autoregressive", "paradecode/tiny-diffusion"
WAYS: Mapping[str, tuple[str, ...]] = {
    "deer": (
        "greedy", "prompt-lookup", "deer", "deer(masks=0)", "deer(num_speculative_tokens=16)",
        "deer(num_speculative_tokens=16,width=1,budget=fixed)",
        "deer(num_speculative_tokens=16,width=1,budget=fixed,refresh=1)",
        "deer(num_speculative_tokens=32,width=1,budget=fixed)",
    ),
    "assd": (
        "assd(tokens=1)", "assd", "assd(tokens=16)", "static(block_length=8)", "threshold",
    ),
}  # fmt: skip
COLUMNS = {
    "way": "{way}", "right": "{right}/{outputs}", "equal": "{equal}/{outputs}",
    "tokens a forward": "{tokens_a_forward:.2f}", "rows a token": "{rows_a_token:.1f}",
    "accepted": "{accepted:.2f}", "tokens a second": "{tokens_a_second:.0f}",
}  # fmt: skip


def measured(group: str, given: Any) -> list[dict[str, Any]]:
    """A row for each way of a group."""
    model, draft = (TARGET, DRAFT) if group == "deer" else (DRAFT, None)
    with LLM(model, draft_model=draft) as llm:
        found = [(task, one) for task in TASKS for one in task.held_out(given.instances)]
        asked = [llm.chat_tokens([{"role": "user", "content": one.prompt}]) for _, one in found]
        made: dict[str, list[Any]] = {way: [] for way in WAYS[group]}
        spent = dict.fromkeys(WAYS[group], 0.0)
        batches = range(0, len(asked), given.batch)
        for number in track(range(given.rounds + 1), description=group, console=err):
            for first in batches if number else batches[:3]:  # The first round warms up.
                for way in WAYS[group]:
                    began = time.perf_counter()
                    outputs = llm.generate(
                        asked[first : first + given.batch], decoder=way, temperature=0,
                        max_tokens=given.max_tokens,
                    )  # fmt: skip
                    if number:
                        spent[way] += time.perf_counter() - began
                    if number == 1:
                        made[way] += outputs
    rows = []
    for way, outputs in made.items():
        tokens = sum(one.stats.generated for one in outputs)
        drafted = sum(one.stats.drafted for one in outputs)
        texts = [one.text.strip() for one in outputs]
        pairs = zip(outputs, made[WAYS[group][0]], strict=True)
        rows.append({
            "way": way,
            "outputs": len(outputs),
            "right": sum(task.check(one, t) for (task, one), t in zip(found, texts, strict=True)),
            "equal": sum(a.token_ids == b.token_ids for a, b in pairs),
            "tokens_a_forward": tokens / sum(one.stats.forwards for one in outputs),
            "rows_a_token": sum(one.stats.rows for one in outputs) / tokens,
            "accepted": sum(one.stats.accepted for one in outputs) / max(drafted, 1),
            "tokens_a_second": given.rounds * tokens / spent[way],
        })  # fmt: skip
    return rows


def main() -> None:
    given = options(__doc__, instances=4, rounds=3, batch=1, max_tokens=96).parse_args()
    groups = {group: measured(group, given) for group in WAYS}
    for rows in groups.values():
        show(rows, COLUMNS)
    settings = {
        name: getattr(given, name) for name in ("instances", "rounds", "batch", "max_tokens")
    }
    save(stamped(target=TARGET, draft=DRAFT, **settings, groups=groups), given.out)


if __name__ == "__main__":
    main()
