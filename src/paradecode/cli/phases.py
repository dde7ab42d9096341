"""Measure where the time of a native forward goes, and the least time that it could take here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.table import Table

from paradecode.backends.interface import PAGE
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import probe
from paradecode.llm import LLM

ROWS = (1, 2, 4, 8, 16)
ROUNDS = 24
"""Number of forwards of each size, which are timed in turns; the faster half counts.

More forwards are more exact and take longer.
"""
CHUNK = 64
"""Number of tokens of each forward that fills the context."""
LONG = 20.0
"""Seconds after which no further round begins."""

MATRICES = {
    "qkv": ("q", "k", "v"), "output": ("o",), "gate+up": ("gate", "up"), "down": ("down",),
    "head": ("head",),
}  # fmt: skip
"""Phase that reads weights -> the matrices that it reads."""


@dataclass(frozen=True)
class Phases:
    """Milliseconds of forwards of several sizes, split into phases.

    Attributes:
        rows: number of tokens of each forward.
        context: number of cached tokens that the forwards see.
        bandwidth: bytes per second that all threads together read from a buffer as large as the
            weights.
        peak: products of two bytes per second that all threads make together.
        float_peak: multiply-adds of float32 per second that all threads make together.
        milliseconds: phase -> milliseconds for each of ``rows``. They are means over threads, so
            the phases add up.
        floors: phase -> the least milliseconds: to read its bytes at ``bandwidth``, or to make its
            products at the peaks, whichever is longer; 0 if it needs neither. Products of bytes and
            of floats use the same units. So 32 inputs of an output cost their dot product, and two
            float operations to scale and add it.
    """

    rows: tuple[int, ...]
    context: int
    bandwidth: float
    peak: float
    float_peak: float
    milliseconds: dict[str, tuple[float, ...]]
    floors: dict[str, tuple[float, ...]]


def measure_phases(
    llm: LLM, context: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Phases:
    """Time forwards of one sequence. This overwrites the model's K/V, so call it while it is idle.

    Args:
        context: number of cached tokens; fewer are used if the model has no room for them.

    Raises:
        InvalidInput: if the backend is not the native one.
    """
    from paradecode.backends.native import _core
    from paradecode.backends.native.backend import NativeBackend

    backend = llm.backend
    if not isinstance(backend, NativeBackend):
        raise InvalidInput("--profile", backend.name, "only the native backend times its phases")
    config = backend.config
    room = min(config.context_length, llm.engine.pools[TARGET].count * PAGE) - max(ROWS)
    context = min(context, room)
    for first in range(0, context, CHUNK):
        backend.forward([probe(config, min(CHUNK, context - first), first)])
    taken: dict[int, list[dict[str, float]]] = {rows: [] for rows in ROWS}
    begun = time.perf_counter()
    for done in range(ROUNDS):
        if time.perf_counter() - begun > LONG:
            break
        for rows in ROWS:
            span = probe(config, rows, context)
            backend.profile(True)
            backend.forward([span])
            taken[rows].append(backend.profile(False))
        progress(done + 1, ROUNDS)
    progress(ROUNDS, ROUNDS)
    bandwidth = _core.read_bandwidth(backend.weight_bytes, backend.threads)
    peak = _core.dot_peak(backend.threads)
    float_peak = _core.float_peak(backend.threads)
    columns = [_typical(taken[rows]) for rows in ROWS]
    # A query meets each token that it sees twice: its key and its value.
    seen = {window: min(context, window or context) for window in backend.slot_bytes}
    met = sum(2 * part.heads * part.head_dim * seen[part.window] for _, part in config.attentions())
    least: dict[str, list[float]] = {phase: [0.0] * len(ROWS) for phase in columns[0]}
    for index, rows in enumerate(ROWS):
        tokens = {window: count + rows for window, count in seen.items()}
        read = sum(size * tokens[window] for window, size in backend.slot_bytes.items()) / bandwidth
        least["attention"][index] = max(read, rows * met / float_peak)
        for phase, kinds in MATRICES.items():
            work = [each for name, each in backend.work().items() if name.split(".")[-1] in kinds]
            read = sum(nbytes for nbytes, _ in work) / bandwidth
            products = rows * sum(products for _, products in work)
            least[phase][index] = max(read, products / peak + products * 2 / 32 / float_peak)
    return Phases(
        ROWS, context, bandwidth, peak, float_peak,
        {phase: tuple(1e3 * column[phase] for column in columns) for phase in columns[0]},
        {phase: tuple(1e3 * seconds for seconds in times) for phase, times in least.items()},
    )  # fmt: skip


def _typical(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over the faster half of the runs, because other load only adds time."""
    fast = sorted(runs, key=lambda run: sum(run.values()))[: (len(runs) + 1) // 2]
    return {phase: sum(run[phase] for run in fast) / len(fast) for phase in runs[0]}


def phase_table(phases: Phases) -> Table:
    """Return a table of each phase's milliseconds, with the least possible ones in brackets."""
    table = Table(
        "",
        title=f"Milliseconds of a forward (at least) after {phases.context} tokens",
        caption=f"at least: {phases.bandwidth / 1e9:.1f} GB/s, {phases.peak / 1e9:.0f} G products "
        f"of bytes and {phases.float_peak / 1e9:.0f} G of floats a second",
        box=SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for rows in phases.rows:
        table.add_column(f"{rows} row{'s' * (rows > 1)}", justify="right", no_wrap=True)
    total = [sum(times) for times in zip(*phases.milliseconds.values())]
    floor = [sum(times) for times in zip(*phases.floors.values())]
    for phase, times in phases.milliseconds.items():
        table.add_row(phase, *map(_cell, times, phases.floors[phase]))
    table.add_section()
    table.add_row("all", *map(_cell, total, floor))
    table.add_row("floor", *(f"{low / all:.0%}" for low, all in zip(floor, total)))
    return table


def _cell(milliseconds: float, floor: float) -> str:
    """Return milliseconds, and in brackets the least possible ones, with three digits each."""
    texts = [
        f"{value:.{max(0, 2 - (value >= 10) - (value >= 100))}f}" for value in (milliseconds, floor)
    ]
    return f"{texts[0]} ({texts[1]})" if floor else texts[0]
