"""Exact match of the autoregressive model that ships, with plain greedy decoding.

    python -m tools.figures.twin [--instances 100] [--out FILE.json]

The held-out instances that ``paradecode bench --suite parallel`` gives its diffusion twin.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from paradecode import LLM
from paradecode.measure.provenance import digest, weights_of
from paradecode.measure.statistics import wilson
from paradecode.measure.tasks.tasks import TASKS
from tools.script import err, options, save, stamped

MODEL = "paradecode/tiny-autoregressive"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    answers: list[dict[str, Any]] = []
    tasks: dict[str, dict[str, Any]] = {}
    with LLM(MODEL) as llm:
        for task in track(TASKS, "tasks", console=err):
            found = task.held_out(given.instances)
            prompts = [llm.chat_tokens([{"role": "user", "content": i.prompt}]) for i in found]
            texts = []
            for first in range(0, len(prompts), given.batch):
                part = prompts[first : first + given.batch]
                made = llm.generate(part, max_tokens=96, temperature=0, decoder=None)
                texts += [completion.text.strip() for completion in made]
            right = [task.check(i, text) for i, text in zip(found, texts, strict=True)]
            tasks[task.name] = {"right": sum(right), "items": len(right)}
            answers += [
                {"task": task.name, "prompt": i.prompt, "text": text, "right": good}
                for i, text, good in zip(found, texts, right, strict=True)
            ]
    table = Table("task", "right", "exact match, 95 %")
    for name, counts in tasks.items():
        interval = wilson(counts["right"], counts["items"])
        counts["exact"] = asdict(interval)
        share = f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        table.add_row(name, f"{counts['right']}/{counts['items']}", share)
    Console().print(table)
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
