"""Measures what FlexDraft's parallel mode would cost: masks inside of the verifying forward.

    python -m tools.figures.flexdraft_bound [--model FILE] [--context 256] [--rounds 15]
        [--share 0.33] [--out FILE.json]
    python -m tools.figures.flexdraft_bound FILE.json --into docs/methods.md

In the parallel mode a verification of v draft tokens also runs v + 1 groups of v + 1 masks through
the last ``share`` of the layers, because it is not known yet after which token the text goes on. In
the sequential mode one group runs through these layers after the verification. Both guess the same
tokens, so the quotient of their seconds is the quotient of their speeds.

The masks run through the target's own layers here. That favours the parallel mode, which has
attention projections of its own to read, and masks that are cut out of the batch. The LM head of
the guesses is left out in both modes.

``break even`` is the number of tokens a step that the faster mode needs to be as fast as plain
decoding, and ``best`` is the speed over plain decoding if all v drafts were always right. All
forwards take turns; a figure is the median of the rounds.
"""

from __future__ import annotations

import time
from argparse import Namespace
from statistics import median
from typing import Any

import numpy as np
from rich.progress import track

from paradecode import LLM
from paradecode.backends.interface import PAGE, Backend, Span
from paradecode_lab.measure.tables import Column
from tools.script import Row, err, options, stamped, tabulate

DRAFTS, BATCHES = (1, 2, 3, 7, 15), (1, 2, 4, 8)
COLUMNS: tuple[Column[Row], ...] = (
    Column("batch", lambda row: str(row["batch"])),
    Column("drafts", lambda row: str(row["drafts"])),
    Column("masks", lambda row: str(row["masks"])),
    Column("plain, ms", lambda row: f"{row['plain']:.1f}"),
    Column("sequential, ms", lambda row: f"{row['sequential']:.1f}"),
    Column("parallel, ms", lambda row: f"{row['parallel']:.1f}"),
    Column("parallel over sequential", lambda row: f"{row['quotient']:.2f}"),
    Column("tokens to break even", lambda row: f"{row['break_even']:.2f}"),
    Column("at most over plain", lambda row: f"{row['best']:.2f}x"),
)


def spans(
    llm: LLM, batch: int, rows: int, context: int, layers: range, judged: int = 0
) -> list[Span]:
    """Return spans of ``rows`` rows for each sequence, which run through ``layers``.

    The first ``judged`` rows go through the LM head.
    """
    at = np.arange(context, context + rows, dtype=np.int32)
    pages, width = -(-(context + rows) // PAGE), llm.config.hidden_size
    last, enters = layers.stop == llm.config.layers, layers.start > 0
    logits = np.arange(judged, dtype=np.int32)
    return [
        Span(
            np.arange(pages, dtype=np.int32) + number * pages, at % 100, at,
            np.full(rows, -1, np.int32), context, logits,
            layers=tuple(layers), resume=np.ones((rows, width), np.float32) if enters else None,
            hidden=() if last else (layers.stop - 1,),
        )
        for number in range(batch)
    ]  # fmt: skip


def seconds(ways: dict[str, list[list[Span]]], backend: Backend, rounds: int) -> dict[str, float]:
    """Return the median seconds of each way, which is a list of forwards."""
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 2):  # Two rounds warm up.
        for way, forwards in ways.items():
            began = time.perf_counter()
            for forward in forwards:
                backend.forward(forward)
            spent[way].append(time.perf_counter() - began)
    return {way: median(times[2:]) for way, times in spent.items()}


def row(
    llm: LLM, batch: int, drafts: int, context: int, split: int, rounds: int
) -> dict[str, float]:
    """Return the milliseconds of a step in both modes, and what follows from them."""
    whole, upper, rows = range(llm.config.layers), range(split, llm.config.layers), drafts + 1
    lower, masks = range(split), rows * rows

    def of(count: int, layers: range, judged: int = 0) -> list[Span]:
        return spans(llm, batch, count, context, layers, judged)

    found = seconds(
        {
            "plain": [of(1, whole, 1)],
            "sequential": [of(rows, whole, rows), of(rows, upper)],
            "parallel": [of(rows, lower), of(rows + masks, upper, rows)],
        },
        llm.backend, rounds,
    )  # fmt: skip
    step = min(found["sequential"], found["parallel"])
    return {
        "batch": batch, "drafts": drafts, "masks": masks,
        **{way: 1e3 * each for way, each in found.items()},
        "quotient": found["parallel"] / found["sequential"],
        "break_even": step / found["plain"], "best": rows * found["plain"] / step,
    }  # fmt: skip


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each batch and number of drafts."""
    with LLM(given.model, backend="native") as llm:
        split = llm.config.layers - round(given.share * llm.config.layers)
        sizes = [(batch, drafts) for batch in BATCHES for drafts in DRAFTS]
        rows = [
            row(llm, *each, given.context, split, given.rounds)
            for each in track(sizes, "sizes", console=err)
        ]
        facts = {"model": llm.model, "layers": llm.config.layers, "split": split}
    return stamped(**facts, context=given.context, rounds=given.rounds, ways=rows)


def main() -> None:
    tabulate(options(__doc__, context=256, rounds=15, share=1 / 3), COLUMNS, measured)


if __name__ == "__main__":
    main()
