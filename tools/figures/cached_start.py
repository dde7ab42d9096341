"""Times how a cached prompt of 2,048 tokens starts: a hybrid's beside its transformer's.

    python -m tools.figures.cached_start [--rounds 5] [--dtype q4] [--out FILE.json]
    python -m tools.figures.cached_start FILE.json --into docs/benchmarks.md

The transformer is the default model. In the hybrid every other layer has random heads of Mamba-2 in
place of attention. A request asks for one token; its prompt shares so many tokens with one that was
answered before, and has one more. Attention finds each whole page again, and layers with a state
the last state that was kept. Both models take turns in one process.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode.models.recurrence import Recurrence
from paradecode.models.weights import Weights
from paradecode_lab.measure.tables import Column
from tools.figures.state_forwards import random_weights
from tools.script import Row, err, options, stamped, tabulate

PROMPT, SHARED = 2048, (0, 2048, 2040, 1800, 1550, 1530)
HEADS = Recurrence(9, 3, 64, 64, width=4, tap_bias=True, skip=True, gate="before",
                   out_norm="groups", norm_groups=3)  # fmt: skip
COLUMNS: tuple[Column[Row], ...] = (
    Column("shared tokens", lambda row: str(row["shared"])),
    Column("rows of the transformer", lambda row: f"{row['transformer_rows']:.0f}"),
    Column("rows of the hybrid", lambda row: f"{row['hybrid_rows']:.0f}"),
    Column("ms of the transformer", lambda row: f"{row['transformer_ms']:.1f}"),
    Column("ms of the hybrid", lambda row: f"{row['hybrid_ms']:.1f}"),
    Column("ratio", lambda row: f"{row['ratio']:.2f}"),
)


def hybrid_of(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    """Return a model whose even layers have random heads in place of attention."""
    stack = tuple(
        layer if index % 2 else replace(layer, order=(HEADS, *layer.order[1:]))
        for index, layer in enumerate(config.stack)
    )
    made = replace(config, name="hybrid", stack=stack)
    own = {name: tensor for name, tensor in weights.items() if name in made.tensors()}
    return made, {**random_weights(made), **own}


def start(engine: Engine, prompt: list[int]) -> tuple[float, float]:
    """Return how many rows are read for the first token, and its seconds."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    asked = GenerationRequest(np.array(prompt, np.int32), parse("greedy"), sampling)
    began, sequence = time.perf_counter(), engine.add(asked)
    while engine.busy:
        engine.step()
    return sequence.rows, time.perf_counter() - began


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each number of shared tokens."""
    opened = open_model(None)
    models = {
        "transformer": (opened.config, opened.weights),
        "hybrid": hybrid_of(opened.config, opened.weights),
    }
    engines = {
        name: Engine(
            {"target": NativeBackend(*model, dtype=given.dtype)}, Limits(kv_tokens=8192, batch=2)
        )
        for name, model in models.items()
    }
    random, rows = np.random.default_rng(0), dict[tuple[str, int], float]()
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in track(range(given.rounds), "rounds", console=err):
        text = random.integers(1000, 40_000, PROMPT).tolist()
        for shared in SHARED:
            prompt = [*text[:shared], *(text if not shared else [999])]
            for name, engine in engines.items():
                rows[name, shared], spent = start(engine, prompt)
                seconds[name, shared].append(spent)
    ways = [
        {
            "shared": shared,
            **{f"{name}_rows": rows[name, shared] for name in engines},
            **{f"{name}_ms": 1e3 * median(seconds[name, shared]) for name in engines},
            "ratio": median(
                a / b for a, b in zip(seconds["hybrid", shared], seconds["transformer", shared])
            ),
        }
        for shared in SHARED
    ]
    return stamped(model=opened.config.name, dtype=given.dtype, rounds=given.rounds, ways=ways)


if __name__ == "__main__":
    tabulate(options(__doc__, rounds=5, dtype="q4"), COLUMNS, measured)
