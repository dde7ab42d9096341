"""Measures one forward, and a batch of eight, beside llama.cpp's on the same file, in one run.

    python -m tools.figures.forward_peers [--rounds 15] [--out bench/results/forward.json]

It needs the environment that ``make bench`` makes for llama.cpp. Both engines take turns. The
figures are medians over rounds, and the median of the ratios within a round.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from rich.progress import track

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.models.catalogue import open_model
from tools.figures.engine import span
from tools.figures.llama_cpp import SECONDS, open_rows
from tools.peers.process import Worker
from tools.script import err, options, save, show, stamped

SLOTS, SEQUENCES = 4096, 8
CASES = (
    *((rows, context, 1) for context in (300, 1500) for rows in (1, 2, 4, 8, 16, 32)),
    (1, 300, SEQUENCES), (512, 0, 1),
)  # fmt: skip
COLUMNS = {
    "sequences": "{sequences}", "context": "{context}", "rows": "{rows}",
    "ours ms": "{ours_ms:.2f}", "llama.cpp ms": "{llama_cpp_ms:.2f}", "ratio": "{ratio:.2f}",
}  # fmt: skip


def ours(backend: Backend) -> Callable[[int, int, int], float]:
    """Return a function that times our forward, with K/V filled like the peer's."""
    vocabulary = backend.config.vocab_size
    backend.reserve(SLOTS // PAGE)
    filled: tuple[int, int] | None = None

    def rows_of(sequence: int, count: int, context: int, logits: bool) -> Span:
        tokens = (100 + np.arange(count, dtype=np.int32) * 7919) % vocabulary
        first_page = sequence * (SLOTS // PAGE // SEQUENCES)
        return span(tokens, context, count if logits else 0, first_page)

    def forward(rows: int, context: int, sequences: int) -> float:
        nonlocal filled
        if filled != (context, sequences):
            for sequence in range(sequences):
                for start in range(0, context, 512):
                    part = min(512, context - start)
                    backend.forward([rows_of(sequence, part, start, False)])
            filled = (context, sequences)
        spans = [rows_of(sequence, rows, context, True) for sequence in range(sequences)]
        started = time.perf_counter()
        for result in backend.forward(spans):
            result.logits.argmax()
        return time.perf_counter() - started

    return forward


def theirs(model: str) -> tuple[Callable[[int, int, int], float], Worker]:
    """Return a function that times llama.cpp's forward, and its worker.

    The worker is stopped between requests, because its idle threads spin.
    """
    worker = open_rows(model, SLOTS, SEQUENCES)
    if worker is None:
        raise SystemExit("llama.cpp is not installed: run `make bench` first")

    def forward(rows: int, context: int, sequences: int) -> float:
        asked = {"rows": rows, "context": context, "sequences": sequences}
        return float(worker.ask(asked, SECONDS)["seconds"])

    return forward, worker


def main() -> None:
    given = options(__doc__, rounds=15).parse_args()
    checkpoint = open_model()
    backend = open_backend("native", checkpoint.config, checkpoint.weights)
    mine = ours(backend)
    peer, worker = theirs(checkpoint.source)
    times: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    try:
        for case in track(CASES, "forwards", console=err):
            mine(*case), peer(*case)
            for _ in range(given.rounds):
                times[case].append((mine(*case), peer(*case)))
    finally:
        worker.kill()
    rows = []
    for (count, context, sequences), pairs in times.items():
        a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(y / x for x, y in pairs)
        rows.append(
            {
                "rows": count, "context": context, "sequences": sequences,
                "ours_ms": 1e3 * a, "llama_cpp_ms": 1e3 * b, "ratio": ratio,
            }
        )  # fmt: skip
    show(rows, COLUMNS)
    save(stamped(model=checkpoint.config.name, cases=rows), given.out)


if __name__ == "__main__":
    main()
