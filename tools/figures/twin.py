"""Exact match of the autoregressive model that ships, with plain greedy decoding.

    python -m tools.figures.twin [--instances 100] [--out FILE.json]

The held-out instances that ``paradecode bench --suite parallel`` gives its diffusion twin.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.progress import track

from paradecode import LLM
from paradecode_lab.measure.machine import digest, weights_of
from paradecode_lab.measure.statistics import wilson
from paradecode_lab.measure.tasks.tasks import TASKS
from tools.script import err, options, save, show, stamped

MODEL = "paradecode/tiny-autoregressive"
COLUMNS = {
    "task": "{task}", "right": "{right}/{items}",
    "exact match, 95 %": "{exact[value]:.3f} ({exact[low]:.3f} to {exact[high]:.3f})",
}  # fmt: skip


def main() -> None:
    given = options(__doc__, instances=100, batch=16).parse_args()
    answers: list[dict[str, Any]] = []
    tasks: dict[str, dict[str, Any]] = {}
    with LLM(MODEL) as llm:
        for task in track(TASKS, "tasks", console=err):
            found = task.held_out(given.instances)
            prompts = [llm.chat_tokens([{"role": "user", "content": i.prompt}]) for i in found]
            texts = []
            for first in range(0, len(prompts), given.batch):
                part = prompts[first : first + given.batch]
                made = llm.complete(part, max_tokens=96, temperature=0, decoder=None)
                texts += [completion.text.strip() for completion in made]
            right = [task.check(i, text) for i, text in zip(found, texts, strict=True)]
            exact = asdict(wilson(sum(right), len(right)))
            tasks[task.name] = {"right": sum(right), "items": len(right), "exact": exact}
            answers += [
                {"task": task.name, "prompt": i.prompt, "text": text, "right": good}
                for i, text, good in zip(found, texts, right, strict=True)
            ]
    show([{"task": name, **counts} for name, counts in tasks.items()], COLUMNS)
    result = stamped(
        model=MODEL,
        weights=digest(weights_of(MODEL)),
        decoder="greedy",
        batch=given.batch,
        tasks=tasks,
        answers=answers,
    )
    save(result, given.out)


if __name__ == "__main__":
    main()
