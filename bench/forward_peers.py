"""One forward, and a batch of eight, against llama.cpp on the same file, in one interleaved run.

    python bench/forward_peers.py [--rounds 15] [--out bench/results/forward.json]

Needs the environment that ``make bench`` makes for llama.cpp. Medians over rounds, and the median
of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.measure.machine import commit, describe, usable_cores
from paradecode.models.catalogue import open_model

FOLDER = Path(__file__).parent
PYTHON = FOLDER / "out" / "envs" / "llama-cpp" / "bin" / "python"
WORKER = FOLDER / "peers" / "workers" / "llama_cpp_forward.py"
SLOTS, SEQUENCES = 4096, 8
CASES = (
    *((rows, context, 1) for context in (300, 1500) for rows in (1, 2, 4, 8, 16, 32)),
    (1, 300, SEQUENCES), (512, 0, 1),
)  # fmt: skip


def ours(backend: Backend) -> Callable[[int, int, int], float]:
    """Seconds of our forward, K/V filled as the peer's is."""
    vocabulary = backend.config.vocab_size
    backend.reserve(SLOTS // PAGE)
    filled: tuple[int, int] | None = None

    def span(sequence: int, count: int, context: int, logits: bool) -> Span:
        pages = np.arange(-(-(context + count) // PAGE), dtype=np.int32)
        slots = np.arange(context, context + count, dtype=np.int32)
        return Span(
            pages=pages + sequence * (SLOTS // PAGE // SEQUENCES),
            tokens=(100 + np.arange(count, dtype=np.int32) * 7919) % vocabulary,
            positions=slots, slots=slots, context=context,
            logits=np.arange(count if logits else 0, dtype=np.int32),
        )  # fmt: skip

    def forward(rows: int, context: int, sequences: int) -> float:
        nonlocal filled
        if filled != (context, sequences):
            for sequence in range(sequences):
                for start in range(0, context, 512):
                    part = min(512, context - start)
                    backend.forward([span(sequence, part, start, False)])
            filled = (context, sequences)
        spans = [span(sequence, rows, context, True) for sequence in range(sequences)]
        started = time.perf_counter()
        for result in backend.forward(spans):
            result.logits.argmax()
        return time.perf_counter() - started

    return forward


def theirs(model: str) -> tuple[Callable[[int, int, int], float], subprocess.Popen[str]]:
    """Seconds of llama.cpp's forward, in a process of its own."""
    process = subprocess.Popen(
        [PYTHON, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def ask(message: dict[str, object]) -> dict[str, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGCONT)
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)  # Its idle threads spin, and would slow ours down.
        return answer

    ask({"model": model, "slots": SLOTS, "sequences": SEQUENCES, "threads": usable_cores()})

    def forward(rows: int, context: int, sequences: int) -> float:
        return ask({"rows": rows, "context": context, "sequences": sequences})["seconds"]

    return forward, process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkpoint = open_model()
    backend = open_backend("native", checkpoint.config, checkpoint.weights)
    mine = ours(backend)
    peer, process = theirs(checkpoint.source)
    times: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    try:
        for case in track(CASES, "forwards", console=Console(stderr=True)):
            mine(*case), peer(*case)
            for _ in range(options.rounds):
                times[case].append((mine(*case), peer(*case)))
    finally:
        process.kill()
    table = Table("sequences", "context", "rows", "ours ms", "llama.cpp ms", "ratio")
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
        table.add_row(
            str(sequences), str(context), str(count), f"{1e3 * a:.2f}", f"{1e3 * b:.2f}",
            f"{ratio:.2f}",
        )  # fmt: skip
    Console().print(table)
    if options.out:
        head = {
            "date": date.today().isoformat(), "machine": asdict(describe()),
            "commit": commit(FOLDER.parent), "model": checkpoint.config.name, "cases": rows,
        }  # fmt: skip
        options.out.write_text(json.dumps(head, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
