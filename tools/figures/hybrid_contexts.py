"""Measures one row of a random hybrid with the default model's shape beside the default model.

    python -m tools.figures.hybrid_contexts [--rounds 20] [--dtype q4] [--out FILE.json]

Every second attention of the hybrid is Mamba-2 with heads of the same number and size, as
*Mamba-in-Llama* (arXiv 2408.15237) replaces them. The weights are random: the figure is a time,
and says nothing about texts. Both models take turns, and a time is the mean over the 16 rows of a
page.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode.models.recurrence import Recurrence
from tools.figures.state_forwards import asked, random_weights
from tools.script import Columns, options, save, show, stamped

CONTEXTS = (304, 4096)
COLUMNS: Columns = {
    "context": "{context}", "transformer, ms": "{transformer_ms:.2f}",
    "hybrid, ms": "{hybrid_ms:.2f}", "speed": "{speed:.2f}x",
}  # fmt: skip


def hybrid_of(config: ModelConfig) -> ModelConfig:
    """Return the configuration with Mamba-2 in place of each second attention."""
    heads = Recurrence(config.heads, config.heads, config.head_dim, config.head_dim, width=4,
                       tap_bias=True, skip=True, gate="before", out_norm="groups")  # fmt: skip
    stack = tuple(
        replace(layer, order=(heads, *layer.order[1:])) if number % 2 else layer
        for number, layer in enumerate(config.stack)
    )
    return replace(config, name="hybrid", stack=stack)


def main() -> None:
    given = options(__doc__, rounds=20, dtype="q4").parse_args()
    default = open_model(None)
    hybrid = hybrid_of(default.config)
    models = [(default.config, default.weights), (hybrid, random_weights(hybrid))]
    tokens = np.random.default_rng(1).integers(0, 40_000, CONTEXTS[-1] + PAGE).astype(np.int32)
    rows: list[dict[str, Any]] = []
    for context in CONTEXTS:
        times: dict[int, list[float]] = defaultdict(list)
        turns = []
        for config, weights in models:
            backend = NativeBackend(config, weights, dtype=given.dtype)
            backend.reserve(context // PAGE + 3)
            if config.state_numbers:
                backend.reserve_states(context // PAGE + 3, 3)
            backend.forward([asked(config, tokens, 0, context, context)])
            spans = [asked(config, tokens, context + at, 1, context) for at in range(PAGE)]
            turns.append((backend, spans))
        for _ in range(given.rounds + 1):
            for number, (backend, spans) in enumerate(turns):
                began = time.perf_counter()
                for each in spans:
                    backend.forward([each])
                times[number].append((time.perf_counter() - began) / PAGE)
        plain, own = times[0][1:], times[1][1:]  # The first turn warms up.
        rows.append({
            "context": context, "transformer_ms": 1e3 * median(plain),
            "hybrid_ms": 1e3 * median(own),
            "speed": median(a / b for a, b in zip(plain, own, strict=True)),
        })  # fmt: skip
    show(rows, COLUMNS)
    save(stamped(dtype=given.dtype, rounds=given.rounds, ways=rows), given.out)


if __name__ == "__main__":
    main()
