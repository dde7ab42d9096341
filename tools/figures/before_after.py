"""Two checkouts of this project side by side: the same answers, and how the speeds compare.

    python -m tools.figures.before_after OLD/.venv/bin/python NEW/.venv/bin/python --out FILE

Each interpreter loads the default model in a process of its own. Every prompt is answered by both,
with every method, one after the other in an order that turns; the other process sleeps meanwhile.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode.prompts import first_of_each_group, load_prompts
from paradecode.timing.warm_up import FIRST_DRAFTS, PROMPT, TOKENS, until
from paradecode_lab.measure.statistics import interval, ratio_of_ratios
from tools.peers.process import Worker
from tools.script import OUT, err, options, stamped, tell

METHODS = {
    "": ("greedy", "prompt-lookup", "suffix", "token-recycling", "layer-skip"),
    "paradecode/tiny-diffusion": ("static", "threshold", "threshold(cache=dual)"),
}
"""Model (the default one: empty) -> its methods."""

TASKS = ("reverse: Ben Sam Art Tom", "sort: Ben Sam Art Tom", "copy: Ben Sam Art Tom")

SECONDS = 600.0
"""Seconds that one answer may take."""


def start(name: str, python: Path, model: str) -> Worker:
    """A process of one interpreter with one model; it sleeps between its answers."""
    worker = Worker(python, "checkout_worker.py", OUT / "logs" / f"checkout-{name}.log", {})
    worker.ask({"load": {"model": model}}, SECONDS)
    return worker


def warm_up(worker: Worker, method: str, tokens: int) -> None:
    """Pay for what one checkout needs once; plain decoding comes first, with more tokens.

    The common warm-up runs in this process, so here it is asked for.
    """

    def answer(turn: int, missing: int) -> int:
        job = {"prompt": PROMPT, "max_tokens": min(missing, FIRST_DRAFTS), "method": method}
        return len(worker.ask({**job, "salt": f"warm-up {turn} {method}"}, SECONDS)["tokens"])

    until(tokens, answer)


def prompts(per_group: int) -> list[str]:
    """Texts of the package's prompts, some of each group."""
    return [prompt.turns[0] for prompt in first_of_each_group(load_prompts(), per_group)]


def compare(model: str, texts: list[str], given: Namespace) -> dict[str, Any]:
    """Method -> ratio of speeds, after over before, with its interval; and equal outputs."""
    pair = {name: start(name, getattr(given, name), model) for name in ("before", "after")}
    for worker in pair.values():
        for number, method in enumerate(METHODS[model]):
            warm_up(worker, method, TOKENS if number == 0 else FIRST_DRAFTS)
    jobs = [
        (round_, text, method)
        for round_ in range(given.rounds)
        for text in texts
        for method in METHODS[model]
    ]
    found: dict[str, list[dict[str, dict[str, Any]]]] = {method: [] for method in METHODS[model]}
    with Progress(console=err) as progress:
        task = progress.add_task(model or "default model", total=len(jobs))
        for number, (round_, text, method) in enumerate(jobs):
            order = ["before", "after"] if number % 2 else ["after", "before"]
            job = {"prompt": text, "max_tokens": given.max_tokens, "method": method}
            job["salt"] = f"{round_} {method}"
            found[method].append({name: pair[name].ask(job, SECONDS) for name in order})
            progress.advance(task)
    for worker in pair.values():
        worker.kill()
    return {method: figures(answers) for method, answers in found.items()}


def figures(answers: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """The ratio of speeds with its 95 % interval, tokens a second, and equal outputs."""
    pairs = [(each["after"], each["before"]) for each in answers]
    rows = [
        (len(new["tokens"]), new["seconds"], len(old["tokens"]), old["seconds"])
        for new, old in pairs
    ]
    new_tokens, new_seconds, old_tokens, old_seconds = map(sum, zip(*rows, strict=True))
    ratio = interval(rows, ratio_of_ratios)
    assert ratio is not None
    return {
        "ratio": [round(value, 4) for value in (ratio.value, ratio.low, ratio.high)],
        "tokens_a_second": {
            "before": round(old_tokens / old_seconds, 1),
            "after": round(new_tokens / new_seconds, 1),
        },
        "equal": sum(new["tokens"] == old["tokens"] for new, old in pairs),
        "outputs": len(answers),
    }


def main() -> None:
    parser = options(__doc__, per_group=2, max_tokens=64, rounds=3)
    parser.add_argument("before", type=Path, help="interpreter of the older checkout")
    parser.add_argument("after", type=Path, help="interpreter of the newer checkout")
    parser.add_argument("--note", default="", help="what the two are, kept in the result")
    given = parser.parse_args()
    results = {
        model or "default": compare(
            model, list(TASKS) if model else prompts(given.per_group), given
        )
        for model in METHODS
    }
    settings = {name: getattr(given, name) for name in ("per_group", "max_tokens", "rounds")}
    tell(stamped(note=given.note, settings=settings, results=results), given.out)


if __name__ == "__main__":
    main()
