"""The most that decoding in blocks could gain over plain decoding on this machine.

    python -m tools.figures.canvas_bound [MODEL ...] [--context 64] [--rounds 40] [--out FILE.json]

A model with attention in blocks, with its exact prefix cache, computes each position twice at
least: as a mask, and in the first forward of the next block as the token that it became. So a
block of B positions takes one forward of 2 B rows, and one of B rows for each further look. Timed
are these forwards of autoregressive models, behind ``--context`` tokens, in turns with a forward
of one row, which is plain decoding. The figure is B times the time of that row over the time of
the block's forwards: what is gained if nothing but forwards takes time, and each block is
finished after 1, 2 or 4 of them. Lower quartiles of the rounds.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.backends.interface import Backend
from paradecode.engine.cost import probe
from tools.script import Columns, err, options, save, show, stamped

MODELS = "paradecode/graded-autoregressive", "default"
BLOCKS = (4, 8, 16, 32)
LOOKS = (1, 2, 4)
COLUMNS: Columns = {
    "model": "{model}", "a row, ms": "{row_ms:.3f}", "block": "{block}",
    "its rows, ms": "{block_ms:.3f}", "twice as many, ms": "{both_ms:.3f}",
    **{f"{n} forwards a block": f"{{most[{n}]:.2f}}x" for n in LOOKS},
}  # fmt: skip


def parser() -> ArgumentParser:
    made = options(__doc__, context=64, rounds=40)
    made.add_argument("models", nargs="*", default=MODELS, help="names, folders or GGUF files")
    return made


def forward_times(backend: Backend, context: int, rounds: int) -> dict[tuple[int, int], float]:
    """Seconds of forwards of (rows, logits), in turns."""
    wanted = {(1, 1), *((b, b) for b in BLOCKS), *((2 * b, b) for b in BLOCKS)}
    times: dict[tuple[int, int], list[float]] = {size: [] for size in sorted(wanted)}
    for _ in track(range(rounds), "forwards", console=err, transient=True):
        for (rows, logits), taken in times.items():
            span = probe(backend.config.vocab_size, rows, context)
            span = replace(span, logits=span.logits[rows - logits :])
            started = time.perf_counter()
            backend.forward([span])[0].logits.argmax()
            taken.append(time.perf_counter() - started)
    return {size: float(np.quantile(taken, 0.25)) for size, taken in times.items()}


def bounds(times: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    """For each block: its forwards' milliseconds, and how many times plain decoding is the most."""
    row = times[1, 1]
    return [
        {
            "row_ms": 1e3 * row, "block": b, "block_ms": 1e3 * times[b, b],
            "both_ms": 1e3 * times[2 * b, b],
            "most": {n: b * row / (times[2 * b, b] + (n - 1) * times[b, b]) for n in LOOKS},
        }
        for b in BLOCKS
    ]  # fmt: skip


def main() -> None:
    given, rows = parser().parse_args(), list[dict[str, Any]]()
    for name in given.models:
        with LLM(None if name == "default" else name, backend="native") as llm:
            times = forward_times(llm.backend, given.context, given.rounds)
            rows += [{"model": llm.model, **bound} for bound in bounds(times)]
    show(rows, COLUMNS)
    save(stamped(context=given.context, rounds=given.rounds, rows=rows), given.out)


if __name__ == "__main__":
    main()
