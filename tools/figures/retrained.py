"""Models that were trained to decode in another way: what they save, and what they lose.

    paradecode train lud out/retrained/lud --steps 800 --rate 1e-3 --threads 1
    paradecode train first out/retrained/first --steps 320 --rate 1e-3 --threads 1
    paradecode train first out/retrained/first-0.05 --steps 400 --rate 1e-3 --price 0.05 --threads 1
    paradecode train lora-drop out/retrained/lora-drop --rate 2e-3
    paradecode train lora-drop out/retrained/lora-drop-1 --rate 2e-3 --window 1 --rank 128
    paradecode train hamburger out/retrained/hamburger --steps 800 --rate 1e-3
    python -m tools.figures.retrained out/retrained [--instances 30] [--rounds 3] [--batch 1]
        [--out FILE.json]
    python -m tools.figures.retrained FILE.json --into docs/training.md

Held-out instances of every task, beside plain decoding of the model that was trained further and of
the trained one; `lora-drop` leaves the first model as it is. ``right`` has a 95 % interval over
instances; ``equal`` counts outputs that are token by token those of the first model. Ways take
turns prompt by prompt; tokens a second are those of whole requests, prompts included. What is not
in the folder is left out.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

from rich.progress import track

from paradecode import LLM
from paradecode.methods.retrained.layers import LoraDrop, Routers
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.machine import digest, weights_of
from paradecode_lab.measure.statistics import Interval, wilson
from paradecode_lab.measure.tables import Column, markdown, percent
from paradecode_lab.measure.tasks.tasks import TASKS
from tools.pages.marked import put
from tools.script import err, options, save, stamped

BASE = "paradecode/tiny-autoregressive"
PLAIN = "greedy"
WAYS: Mapping[str, tuple[str, ...]] = {
    BASE: (PLAIN, "prompt-lookup"),
    "lud": (
        PLAIN, *(f"lud(threshold={least})" for least in (2.0, 0.99, 0.9, 0.7, 0.5)),
        "lud(placeholders=2)",
    ),
    "first": (PLAIN, *(f"first(routers='{{}}',threshold={t})" for t in (0.0, 0.45, 0.5, 0.6))),
    "first-0.05": ("first(routers='{}',threshold=0.0)", "first(routers='{}')"),
    "lora-drop": ("lora-drop(adapters='{}',window=0)", "lora-drop(adapters='{}')"),
    "lora-drop-1": ("lora-drop(adapters='{}',window=1)",),
    "hamburger": (
        PLAIN, "hamburger(parts='{}',group=1)",
        *(f"hamburger(parts='{{}}',confidence={least})" for least in (0.99, 0.9, 0.7, 0.5)),
    ),
}  # fmt: skip
"""Maps each model to the methods that are measured with it."""
PARTS = ("routers.safetensors", "adapters.safetensors", "parts.safetensors")
"""Files beside a model; a run has one of them, or none."""


def place_of(given: Namespace, name: str) -> str:
    """The path of a model."""
    own = given.runs / name / "model"
    return str(own) if name != BASE and own.is_dir() else BASE


def opened(given: Namespace, stack: ExitStack) -> dict[tuple[str, str], tuple[LLM, str]]:
    """Every way, a model's name and a spec as it is shown -> the model and the spec."""
    found: dict[tuple[str, str], tuple[LLM, str]] = {}
    for name, ways in WAYS.items():
        files = (given.runs / name / part for part in PARTS)
        part = next(filter(Path.is_file, files), None) or Path()
        if name == BASE or part.name or place_of(given, name) != BASE:
            llm = stack.enter_context(LLM(place_of(given, name), threads=1))
            for way in ways:
                found[name, way.format(part.name)] = llm, way.format(part)
    return found


@contextmanager
def layers_counted() -> Iterator[Callable[[int], float]]:
    """How many layers a token of an answer ran since the last call, given how many there are."""
    choose, token = Routers.layers, LoraDrop.token
    kept, dropped = list[int](), list[int]()

    def chosen(self: Routers, *args: Any) -> tuple[int, ...]:
        layers = choose(self, *args)
        kept.append(len(layers))
        return layers

    def run(self: LoraDrop, seq: Any, at: int, refreshed: Any, refresh: bool) -> Any:
        dropped.append(0 if refresh else len(self.trained.facts["dropped"]))
        return token(self, seq, at, refreshed, refresh)

    def mean_of(layers: int) -> float:
        found = mean(kept) if kept else layers - mean(dropped or [0])
        kept.clear()
        dropped.clear()
        return found

    with patch.object(Routers, "layers", chosen), patch.object(LoraDrop, "token", run):
        yield mean_of


def measured(given: Namespace) -> dict[str, Any]:
    """A row for each way."""
    asked = [(task, one) for task in TASKS for one in task.held_out(given.instances)]
    with ExitStack() as stack:
        ways = opened(given, stack)
        for llm, spec in ways.values():
            warm_up(llm, [spec])
        ran = stack.enter_context(layers_counted())
        layers: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        made: dict[tuple[str, str], list[Any]] = {way: [] for way in ways}
        spent = dict.fromkeys(ways, 0.0)
        for turn in track(range(given.rounds), "rounds", console=err):
            for first in range(0, len(asked), given.batch):
                part = [one.prompt for _, one in asked[first : first + given.batch]]
                for way, (llm, spec) in ways.items():
                    prompts = [llm.chat_tokens([{"role": "user", "content": p}]) for p in part]
                    began = time.perf_counter()
                    outputs = llm.complete(
                        prompts, decoder=spec, temperature=0, seed=0, max_tokens=given.max_tokens
                    )
                    seconds, number = time.perf_counter() - began, ran(llm.config.layers)
                    spent[way] += seconds
                    layers[way].append(number)
                    if turn == 0:
                        made[way] += outputs
        weights = {name: digest(weights_of(place_of(given, name))) for name, _ in ways}
    plain = made[BASE, PLAIN]
    rows = []
    for (name, shown), outputs in made.items():
        tokens = sum(one.stats.generated for one in outputs)
        right = sum(
            task.check(one, out.text.strip())
            for (task, one), out in zip(asked, outputs, strict=True)
        )
        rows.append({
            "model": name,
            "way": shown,
            "outputs": len(outputs),
            "right": asdict(wilson(right, len(outputs))),
            "equal": sum(a.token_ids == b.token_ids for a, b in zip(outputs, plain, strict=True)),
            "tokens_a_forward": tokens / sum(one.stats.forwards for one in outputs),
            "layers": mean(layers[name, shown]),
            "tokens_a_second": given.rounds * tokens / spent[name, shown],
        })  # fmt: skip
    settings = {n: getattr(given, n) for n in ("instances", "rounds", "batch", "max_tokens")}
    return stamped(**settings, weights=weights, methods=rows)


COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("model", lambda row: row["model"].removeprefix("paradecode/")),
    Column("method", lambda row: f"`{row['way']}`"),
    Column("right", lambda row: percent(Interval(**row["right"]))),
    Column("equal", lambda row: f"{row['equal']} of {row['outputs']}"),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("layers", lambda row: f"{row['layers']:.2f}"),
    Column("tokens/s", lambda row: f"{row['tokens_a_second']:.0f}"),
)


def main() -> None:
    parser = options(__doc__, instances=30, rounds=3, batch=1, max_tokens=96)
    parser.add_argument("runs", type=Path, help="folder of the runs, or the JSON of a measurement")
    parser.add_argument("--into", type=Path, help="a page with marks named as the JSON")
    given = parser.parse_args()
    known = given.runs.suffix == ".json"
    made = json.loads(given.runs.read_text("utf-8")) if known else measured(given)
    table = markdown(COLUMNS, made["methods"])
    print(table)
    save(made, given.out)
    if given.into:
        put(given.into, (given.out or given.runs).stem, f"\n{table}\n")


if __name__ == "__main__":
    main()
