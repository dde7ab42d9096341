"""Measures forwards of a random model with Mamba2-130m's shape beside those of the default model.

    python -m tools.figures.state_forwards [--rounds 12] [--dtype q4] [--out FILE.json]
    python -m tools.figures.state_forwards FILE.json --into docs/benchmarks.md

The weights are random, because no trained checkpoint is needed for a time. Both models take turns
in one process. A figure is the mean over forwards that begin at each of the 16 rows of a page, so
the states that are written once a page, and drafts that cross its end, have their share. ``least``
is the time in which the processor reads the bytes that the core has counted, at the bandwidth of
the same round.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.backends.interface import PAGE, Span, StatePages, WindowPages
from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Layer
from paradecode.models.recurrence import Recurrence
from paradecode.models.weights import Tensor, Weights
from paradecode_lab.measure.tables import Column
from tools.figures.engine import span
from tools.script import Row, err, options, stamped, tabulate

ROWS, CONTEXT = (1, 2, 4, 8, 16), 19 * PAGE
HEADS = Recurrence(24, 1, 128, 64, width=4, tap_bias=True, skip=True, gate="before",
                   out_norm="groups")  # fmt: skip
MAMBA = ModelConfig("Mamba2-130m's shape", "mamba2", 50288, 768, (Layer((HEADS,)),) * 24, 1 << 20,
                    tied_head=True)  # fmt: skip
COLUMNS: tuple[Column[Row], ...] = (
    Column("model", lambda row: row["model"]),
    Column("rows", lambda row: str(row["rows"])),
    Column("MB", lambda row: f"{row['megabytes']:.1f}"),
    Column("ms", lambda row: f"{row['ms']:.2f}"),
    Column("over one row", lambda row: f"{row['over_one']:.2f}x"),
    Column("over the least", lambda row: f"{row['over_least']:.2f}x"),
)


def random_weights(config: ModelConfig) -> Weights:
    """Return random weights whose states neither vanish nor grow."""
    random, made = np.random.default_rng(0), {}
    for name, shape in config.tensors().items():
        values = random.standard_normal(shape, np.float32) / shape[-1] ** 0.5
        if name.endswith(("norm", "gain", "skip")):
            values = np.ones(shape, np.float32)
        elif name.endswith("state_decay"):
            values = -random.uniform(1, 16, shape).astype(np.float32)
        elif name.endswith("dt_bias"):  # Steps from 0.001 to 0.1, as Mamba-2 begins.
            steps = 10 ** random.uniform(-3, -1, shape)
            values = np.log(np.expm1(steps)).astype(np.float32)
        made[name] = Tensor(values, shape)
    return made


def asked(config: ModelConfig, tokens: Any, context: int, rows: int, begin: int = CONTEXT) -> Span:
    """Return the forward of ``rows`` rows, of which the first is kept in any case.

    Args:
        begin: positions of the forward that comes before all others.
    """
    one = span(tokens[context : context + rows], context, rows)
    if not config.state_numbers:
        return one
    first, base, last = context == 0, begin // PAGE, (context + 1) // PAGE
    writes = ((base, 1),) if first else ((last, 2),) if last > base else ()
    records = WindowPages(base, np.arange(3, dtype=np.int32))
    states = StatePages(records, 0 if first else base, -1 if first else 1, writes)
    return replace(one, states=states)


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each model and number of rows."""
    default = open_model(None)
    models = [(default.config, default.weights), (MAMBA, random_weights(MAMBA))]
    ways: list[dict[str, Any]] = []
    forwards: dict[tuple[str, int], list[Span]] = {}
    backends: dict[str, NativeBackend] = {}
    for config, weights in models:
        backend = backends[config.name] = NativeBackend(config, weights, dtype=given.dtype)
        backend.reserve(CONTEXT // PAGE + 3)
        if config.state_numbers:
            backend.reserve_states(3, 3)
        tokens = np.random.default_rng(1).integers(0, 40_000, 2 * CONTEXT).astype(np.int32)
        backend.forward([asked(config, tokens, 0, CONTEXT)])
        for rows in ROWS:
            forwards[config.name, rows] = [
                asked(config, tokens, CONTEXT + at, rows) for at in range(PAGE)
            ]
            backend.traffic(True)
            for each in forwards[config.name, rows]:
                backend.forward([each])
            nbytes = mean(one.nbytes for one in backend.traffic(False))
            ways.append({"model": config.name, "rows": rows, "megabytes": nbytes / 1e6})
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    bandwidth = []
    for _ in track(range(given.rounds), "rounds", console=err):
        backend = backends[MAMBA.name]
        bandwidth.append(_core.read_bandwidth(backend.weight_bytes, backend.threads))
        for (name, rows), spans in forwards.items():
            began = time.perf_counter()
            for each in spans:
                backends[name].forward([each])
            times[name, rows].append((time.perf_counter() - began) / PAGE)
    for way in ways:
        own, one = times[way["model"], way["rows"]], times[way["model"], 1]
        least = [1e6 * way["megabytes"] / read for read in bandwidth]
        way["ms"] = 1e3 * median(own)
        way["over_one"] = median(a / b for a, b in zip(own, one, strict=True))
        way["over_least"] = median(a / b for a, b in zip(own, least, strict=True))
    return stamped(
        rounds=given.rounds, dtype=given.dtype, context=CONTEXT, threads=backend.threads,
        bandwidth=median(bandwidth) / 1e9, ways=ways,
    )  # fmt: skip


if __name__ == "__main__":
    tabulate(options(__doc__, rounds=12, dtype="q4"), COLUMNS, measured)
