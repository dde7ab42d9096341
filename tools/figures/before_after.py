"""Two checkouts of this project side by side: the same answers, and how the speeds compare.

    python -m tools.figures.before_after OLD/.venv/bin/python NEW/.venv/bin/python --out FILE

Each interpreter loads the default model in a process of its own. Every prompt is answered by both,
with every method, one after the other in an order that turns; the other process sleeps meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from paradecode.measure.statistics import interval, ratio_of_ratios
from tools.script import err, options, stamped, tell

METHODS = {
    "": ("greedy", "prompt-lookup", "suffix", "token-recycling", "layer-skip"),
    "paradecode/tiny-diffusion": ("static", "threshold", "threshold(cache=dual)"),
}
"""Model (the default one: empty) -> its methods."""

TASKS = ("reverse: Ben Sam Art Tom", "sort: Ben Sam Art Tom", "copy: Ben Sam Art Tom")

WORKER = """
import json, sys, time
from paradecode import LLM
llm = LLM(sys.argv[1] or None, decoder=None)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    begin = time.perf_counter()
    answer = llm.generate(job["prompt"], max_tokens=job["max_tokens"], decoder=job["method"],
                          salt=job["salt"], ignore_eos=True)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "tokens": list(answer.token_ids)}), flush=True)
"""


class Checkout:
    """A process of one interpreter with one model; it uses nothing but the public front."""

    def __init__(self, python: Path, model: str) -> None:
        self._process = subprocess.Popen(
            [str(python), "-c", WORKER, model],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def ask(self, **job: Any) -> dict[str, Any]:
        """One answer: seconds of the whole call, and token ids."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r:.200} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prompts(given: Namespace) -> list[str]:
    """Texts of the package's prompts, some of each group."""
    from paradecode.measure.prompts import load_prompts

    taken: dict[str, list[str]] = {}
    for prompt in load_prompts():
        texts = taken.setdefault(prompt.group, [])
        if len(texts) < given.per_group:
            texts.append(prompt.turns[0])
    return [text for texts in taken.values() for text in texts]


def compare(model: str, texts: list[str], given: Namespace) -> dict[str, Any]:
    """Method -> ratio of speeds, after over before, with its interval; and equal outputs."""
    pair = {"before": Checkout(given.before, model), "after": Checkout(given.after, model)}
    jobs = [
        (round_, index, text, method)
        for round_ in range(given.rounds + 1)  # The first one warms up and is not counted.
        for index, text in enumerate(texts if round_ else texts[:2])
        for method in METHODS[model]
    ]
    found: dict[str, list[dict[str, dict[str, Any]]]] = {method: [] for method in METHODS[model]}
    with Progress(console=err) as progress:
        task = progress.add_task(model or "default model", total=len(jobs))
        for number, (round_, _, text, method) in enumerate(jobs):
            order = ["before", "after"] if number % 2 else ["after", "before"]
            answers = {
                name: pair[name].ask(
                    prompt=text, max_tokens=given.max_tokens, method=method,
                    salt=f"{round_} {method}",
                )
                for name in order
            }  # fmt: skip
            if round_:
                found[method].append(answers)
            progress.advance(task)
    for checkout in pair.values():
        checkout.close()
    return {method: figures(answers) for method, answers in found.items()}


def figures(answers: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """The ratio of speeds with its 95 % interval, tokens a second, and equal outputs."""
    columns = [
        [float(len(each[name]["tokens"])) if what == "tokens" else each[name]["seconds"]
         for each in answers]
        for name in ("after", "before") for what in ("tokens", "seconds")
    ]  # fmt: skip
    ratio = interval(columns, ratio_of_ratios)
    assert ratio is not None
    return {
        "ratio": [round(value, 4) for value in (ratio.value, ratio.low, ratio.high)],
        "tokens_a_second": {
            "before": round(sum(columns[2]) / sum(columns[3]), 1),
            "after": round(sum(columns[0]) / sum(columns[1]), 1),
        },
        "equal": sum(each["before"]["tokens"] == each["after"]["tokens"] for each in answers),
        "outputs": len(answers),
    }


def main() -> int:
    """Entry point."""
    parser = options(__doc__)
    parser.add_argument("before", type=Path, help="interpreter of the older checkout")
    parser.add_argument("after", type=Path, help="interpreter of the newer checkout")
    parser.add_argument("--per-group", type=int, default=2, help="prompts of each group")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="times that every prompt is answered")
    given = parser.parse_args()
    results = {
        model or "default": compare(model, list(TASKS) if model else prompts(given), given)
        for model in METHODS
    }
    settings = {"per_group": given.per_group, "max_tokens": given.max_tokens,
                "rounds": given.rounds}  # fmt: skip
    tell(stamped(settings=settings, results=results), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
