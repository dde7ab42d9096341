"""Measures attention with shared low-rank queries (MFA) beside grouped heads of equal size.

    python -m tools.figures.shared_queries [--rounds 12] [--out FILE.json]

Both models are random, and their attention has as many weights: 16 heads of 128 numbers with an
inner width of 512 and one head of keys and values (Step-3, arXiv 2507.19427), and 24 heads of 64
with 6 heads of keys and values. All forwards are measured in turns within a round, so ratios of
the two hold on a busy machine, too. Times are medians.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Attention, Feed, Layer
from paradecode.models.rope import Rope
from paradecode.models.tiny import random_weights
from tools.figures.engine import span
from tools.figures.forward import seconds_of
from tools.script import options, save, show, stamped

HIDDEN, LAYERS, VOCABULARY = 1024, 4, 4096
ROWS, CONTEXTS, CALLS = (1, 8), (256, 3072), 4
WAYS = {
    "mfa": Attention(16, 1, 128, rope=Rope(dim=128), query_rank=512),
    "grouped": Attention(24, 6, 64, rope=Rope(dim=64)),
}
COLUMNS = {
    "attention": "{way}", "context": "{context}", "rows": "{rows}", "ms": "{ms:.2f}",
    "times grouped": "{ratio:.2f}", "numbers kept a token and layer": "{kept}",
    "attention weights a layer": "{weights}",
}  # fmt: skip


def measured(rounds: int) -> list[dict[str, Any]]:
    """Return the time of each model's forwards, by context and number of rows."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, max(CONTEXTS)).astype(np.int32)
    models = {}
    for way, attention in WAYS.items():
        config = ModelConfig(
            name=way, architecture="llama", vocab_size=VOCABULARY, hidden_size=HIDDEN,
            stack=(Layer((attention, Feed(2 * HIDDEN))),) * LAYERS, context_length=8192,
        )  # fmt: skip
        models[way] = NativeBackend(config, random_weights(config), dtype="q8")
        models[way].reserve(-(-(max(CONTEXTS) + max(ROWS)) // PAGE))
        models[way].forward([span(ids, 0, 1)])
    times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for _ in range(rounds * CALLS):
        for context in CONTEXTS:
            for rows in ROWS:
                for way, model in models.items():
                    one = [span(ids[:rows], context, rows)]
                    times[way, context, rows].append(seconds_of(model.forward, one))
    sizes = {way: attention.tensors(HIDDEN).values() for way, attention in WAYS.items()}
    return [
        {
            "way": way, "context": context, "rows": rows, "ms": 1e3 * median(each),
            "ratio": median(np.divide(each, times["grouped", context, rows]).tolist()),
            "kept": WAYS[way].slot_numbers,
            "weights": sum(int(np.prod(shape)) for shape in sizes[way] if len(shape) == 2),
        }
        for (way, context, rows), each in times.items()
    ]  # fmt: skip


def main() -> None:
    given = options(__doc__, rounds=12).parse_args()
    ways = measured(given.rounds)
    show(ways, COLUMNS)
    save(stamped(rounds=given.rounds, ways=ways), given.out)


if __name__ == "__main__":
    main()
