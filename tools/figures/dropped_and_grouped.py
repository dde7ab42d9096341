"""Measures what LoRA-Drop and HAMburger keep of plain decoding's answers, and what they save.

    paradecode train hamburger out/hamburger --group 2 --steps 1600 --threads 1
    paradecode train lora-drop out/lora-drop --window 1 --rank 128 --rate 2e-3 --threads 1
    python -m tools.figures.dropped_and_grouped out/hamburger out/lora-drop [--model FILE]
        [--instances 6] [--max-tokens 64] [--rounds 2] [--out FILE.json]
    python -m tools.figures.dropped_and_grouped FILE.json --into docs/training.md

Every RUN answers held-out instances of all tasks of the tiny model that it was trained from, and so
does that model (``greedy``). ``kept`` is the share of plain decoding's right answers that are right
as well; ``rows`` are the keys and values that are stored for a token of the output.

``--model``, the package's model by default, has LoRAs of zeros for half of its layers. Its texts
are of no use, but its speed is that of trained ones: this is the most that a window can bring
there. All ways take turns prompt by prompt in one process, so that ``over plain``, the median
quotient of tokens a second, depends little on the load of the machine.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.methods.retrained.layers import DropAdapters
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.measure.tables import Column
from paradecode_lab.measure.tasks.tasks import TASKS
from tools.script import err, options, stamped, tabulate

TINY, PLAIN = "paradecode/tiny-autoregressive", "greedy"
DROPS = tuple(f"lora-drop(adapters='adapters.safetensors',window={n})" for n in (0, 1, 2, 3))
GROUPS = (
    "hamburger(parts='parts.safetensors',group=1)",
    *(f"hamburger(parts='parts.safetensors',confidence={least})" for least in (0.999, 0.99, 0.9)),
)
COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("model", lambda row: row["model"].removeprefix("paradecode/")),
    Column("method", lambda row: f"`{row['way']}`"),
    Column("kept", lambda row: "" if row["kept"] is None else f"{row['kept']:.0%}"),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("rows a token", lambda row: f"{row['rows_a_token']:.2f}"),
    Column("over plain", lambda row: f"{row['over_plain']:.2f}x"),
)


def in_turns(
    ways: Mapping[tuple[str, str], tuple[LLM, str]], prompts: Sequence[Any], given: Namespace
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Decode all prompts in all ways, of which the first is plain decoding.

    Args:
        ways: names of the model and of the way as a page shows them -> the model and its spec.

    Returns:
        A row for each way, and each way's texts.
    """
    ratios: list[list[float]] = [[] for _ in ways]
    outs: list[list[Any]] = [[] for _ in ways]
    for prompt in track(list(prompts) * given.rounds, "prompts", console=err):
        speeds = []
        for (llm, spec), made in zip(ways.values(), outs, strict=True):
            began = time.perf_counter()
            found = llm.complete([prompt], decoder=spec, temperature=0, max_tokens=given.max_tokens)
            speeds.append(found[0].stats.generated / (time.perf_counter() - began))
            made += found
        for speed, each in zip(speeds, ratios, strict=True):
            each.append(speed / speeds[0])
    rows = []
    for (model, way), made, each in zip(ways, outs, ratios, strict=True):
        stats = [one.stats for one in made]
        stored = sum(1 + one.rows + one.cached_tokens - one.prompt_tokens for one in stats)
        tokens = sum(one.generated for one in stats)
        rows.append({
            "model": model, "way": way, "kept": None,
            "tokens_a_forward": tokens / sum(one.forwards for one in stats),
            "rows_a_token": stored / tokens, "over_plain": median(each),
        })  # fmt: skip
    return rows, [[out.text.strip() for out in made[: len(prompts)]] for made in outs]


def answered(given: Namespace) -> list[dict[str, Any]]:
    """Return a row for each way of each run on the tasks of the tiny model."""
    asked = [(task, one) for task in TASKS for one in task.held_out(given.instances)]
    with ExitStack() as stack:
        tiny = stack.enter_context(LLM(TINY, threads=1))
        ways = {(TINY, PLAIN): (tiny, PLAIN)}
        for run in given.runs:
            own, drops = run / "model", (run / "adapters.safetensors").exists()
            llm = stack.enter_context(LLM(str(own), threads=1)) if own.is_dir() else tiny
            for way in DROPS if drops else (PLAIN, *GROUPS):
                ways[run.name, way] = llm, way.replace("='", f"='{run}/")
        prompts = [tiny.chat_tokens([{"role": "user", "content": one.prompt}]) for _, one in asked]
        rows, texts = in_turns(ways, prompts, given)
    right = [[t.check(one, text) for (t, one), text in zip(asked, each)] for each in texts]
    for row, mine in zip(rows, right, strict=True):
        row["answers"], row["right"] = len(asked), sum(mine)
        row["kept"] = sum(a and b for a, b in zip(mine, right[0], strict=True)) / sum(right[0])
    return rows


def speeds(given: Namespace) -> list[dict[str, Any]]:
    """Return a row for each window on a model whose LoRAs are zeros."""
    with LLM(given.model, backend="native") as llm, TemporaryDirectory() as place:
        about = llm.config
        first = about.layers - 1 - about.layers // 2
        facts = {"layers": about.layers, "hidden_size": about.hidden_size, "rank": 16,
                 "dropped": [*range(first, about.layers - 1)]}  # fmt: skip
        shapes = DropAdapters(facts, {}).shapes()
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        DropAdapters(facts, zeros).save(Path(place) / "adapters.safetensors")
        items = first_turns(first_of_each_group(load_prompts(), 1), llm.chat_tokens)
        ways = {
            (llm.model, way): (llm, way.replace("='", f"='{place}/")) for way in (PLAIN, *DROPS)
        }
        return in_turns(ways, [item.token_ids for item in items], given)[0]


def measured(given: Namespace) -> dict[str, Any]:
    """Return the rows of all runs, and of the model whose LoRAs are zeros."""
    facts = {n: getattr(given, n) for n in ("instances", "max_tokens", "rounds")}
    return stamped(**facts, ways=answered(given) + speeds(given))


def main() -> None:
    tabulate(options(__doc__, instances=6, max_tokens=64, rounds=2), COLUMNS, measured)


if __name__ == "__main__":
    main()
