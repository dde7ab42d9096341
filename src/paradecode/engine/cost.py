"""Measured costs of forward passes on this machine, and the present load of the engine.

The native core reads a cost curve in the same way in ``csrc/costs.cpp``.
"""

from __future__ import annotations

import json
import os
import platform
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from paradecode.backends.interface import PAGE, Backend, Span, StatePages, WindowPages
from paradecode.core.decoder import TARGET
from paradecode.models.config import ModelConfig

QUICK_ROWS, QUICK_CONTEXTS, QUICK_REPEATS = (1, 2, 4, 5, 8, 16, 32), (256,), 5
FULL_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
FULL_CONTEXTS, FULL_REPEATS = (64, 300, 1500), 25
ENOUGH_REPEATS, LONG = 12, 10.0
"""A slow measurement stops early: after this many repeats, once it has taken this many seconds."""
MANY_ROWS = 16
"""Forward passes of more rows than this get a quarter of the repeats, because they take long."""
OVERHEAD = 8e-5, 8e-5, 6e-5
"""Seconds of a step outside of the forward pass, if methods make the step in Python.

The numbers are for the step itself, for each sequence, and for a sequence's draft.
"""
FREE_ROWS = 16
"""Number of rows that together cost as much as reading the weights once.

It is used if no cost was measured.
"""
STEP = 32
"""Tokens of context between two stored values of :meth:`CostCurve.at`; lower is more precise."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a forward pass as a function of its rows and of the context that they attend to.

    Attributes:
        rows, contexts: the grid of measured sizes, ascending; contexts are in tokens.
        seconds: for each context, the seconds for each number of rows.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of a forward pass by linear interpolation between the grid's points.

        Beyond the grid the last slope continues. The context is rounded down to a multiple of 32
        tokens.
        """
        # Budgets ask for every node of every draft, so results are cached. The cost depends on the
        # context only slowly, so the context can be rounded.
        where = rows, context // STEP
        found = self._known.get(where)
        if found is None:
            found = self._known[where] = self._at(rows, where[1] * STEP)
        return found

    @property
    def sound(self) -> bool:
        """True if the grid ascends and its times are possible. A curve from a file may be wrong."""
        rows, contexts, seconds = self.rows, self.contexts, self.seconds
        shaped = len(seconds) == len(contexts) > 0 and all(len(s) == len(rows) > 0 for s in seconds)
        ordered = sorted(set(rows)) == list(rows) and sorted(set(contexts)) == list(contexts)
        return shaped and ordered and all(0 < t < 1e4 for column in seconds for t in column)

    def _at(self, rows: int, context: int) -> float:
        columns = [_line(rows, self.rows, column) for column in self.seconds]
        return columns[0] if len(columns) == 1 else _line(context, self.contexts, columns)

    @cached_property
    def _known(self) -> dict[tuple[int, int], float]:
        return {}


def _line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the piecewise linear value at ``x``, never below the first value.

    Beyond the last point the last slope continues.
    """
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    end = min(bisect_left(xs, x), len(xs) - 1)
    slope = max(0.0, (ys[end] - ys[end - 1]) / (xs[end] - xs[end - 1]))
    return ys[end - 1] + slope * (x - xs[end - 1])


@dataclass
class Load:
    """The number of sequences and rows in the engine's current target steps, and measured costs.

    Attributes:
        curve: measured cost of a forward pass of the target, or None.
        others: measured costs of the other models, by name.
        sequences, rows: numbers of sequences and rows in the last step's target forwards. A request
            without a target forward in that step, because its draft model ran or it arrived later,
            counts as one row.
        together: True if the backend can make several steps of all sequences in one call.
    """

    curve: CostCurve | None = None
    others: dict[str, CostCurve] = field(default_factory=dict)
    sequences: int = 1
    rows: int = 1
    together: bool = True

    @property
    def overhead(self) -> float:
        """The seconds of a step outside of its forward passes."""
        return OVERHEAD[0] + OVERHEAD[1] * self.sequences

    def of_step(self, model: str, rows: int, context: int) -> float:
        """Return the seconds of a step of ``rows`` sequences with one row each.

        If nothing was measured, the result is a rough guess in another unit.
        """
        curve = self.curve if model == TARGET else self.others.get(model)
        if curve is None:
            return float(FREE_ROWS + rows)
        return curve.at(rows, context) + OVERHEAD[0] + OVERHEAD[1] * rows

    def seconds(self, model: str, rows: int, before: int, length: int) -> float | None:
        """Return the seconds of a step in which one sequence has ``rows`` rows; None if unmeasured.

        Args:
            before: number of this sequence's rows in the last target forward pass. The rows of
                other sequences are assumed to stay the same.
            length: number of the sequence's tokens that the rows attend to.
        """
        if model != TARGET:
            other = self.others.get(model)
            return other.at(rows, length) + self.overhead if other else None
        if self.curve is None:
            return None
        forward = self.curve.at(max(0, self.rows - before) + rows, length)
        return forward + self.overhead + (OVERHEAD[2] if rows > 1 else 0.0)


def measure(
    backend: Backend,
    pages: int,
    rows: Sequence[int] = FULL_ROWS,
    contexts: Sequence[int] = FULL_CONTEXTS,
    repeats: int = FULL_REPEATS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """Measure forward passes of one sequence, and return their cost curve.

    This overwrites the backend's keys and values, so call it while the engine is idle.

    Args:
        pages: number of pages that the backend has reserved.
        rows, contexts: the grid; sizes that do not fit into the context or the pages are left out.
        repeats: largest number of repeats of each size (12 if the model is slow); sizes with many
            rows get a quarter. Repeats of different sizes alternate, and the lower quartile of each
            size is its result.
        progress: called with the number of finished repeats and the number of all repeats.
    """
    config = backend.config
    room = min(config.context_length, pages * PAGE)
    rows = [k for k in rows if k <= room // 2] or [1]
    contexts = [c for c in contexts if c + max(rows) <= room] or [max(0, room - max(rows))]
    times: dict[tuple[int, int], list[float]] = {(c, k): [] for c in contexts for k in rows}
    backend.forward([probe(config, max(rows), 0)])
    # Memory that was never written may hold NaN: copy what that forward stored into every slot.
    every = np.arange(max(contexts), dtype=np.int64)
    backend.copy(every % max(rows), every)
    begun = time.perf_counter()
    for turn in range(repeats):
        if turn >= ENOUGH_REPEATS and time.perf_counter() - begun > LONG:
            progress(repeats, repeats)
            break
        for context, count in times:
            if count > MANY_ROWS and turn % 4:
                continue
            span = probe(config, count, context)
            started = time.perf_counter()
            backend.forward([span])[0].logits.argmax()
            times[context, count].append(time.perf_counter() - started)
        progress(turn + 1, repeats)
    seconds = []
    for context in contexts:
        # Other processes only ever add time: the lower quartile is closer to the truth than the
        # median. More rows never cost less; if they seem to, fewer rows were slowed down.
        typical = [float(np.quantile(times[context, count], 0.25)) for count in rows]
        seconds.append(tuple(np.minimum.accumulate(typical[::-1])[::-1].tolist()))
    return CostCurve(tuple(rows), tuple(contexts), tuple(seconds))


recalled: dict[str, dict[str, list[Any]]] = {}
"""Digest of a model and machine (:func:`name_of`) -> the curve that an earlier process measured."""


def obtain(backend: Backend, pages: int) -> CostCurve:
    """Return the cost curve of this model and machine: recalled, saved, or measured quickly now."""
    known = _curve(recalled.get(name_of(backend), {})) or load(backend)
    return known or measure(backend, pages, QUICK_ROWS, QUICK_CONTEXTS, QUICK_REPEATS)


def load(backend: Backend) -> CostCurve | None:
    """Return the curve that :func:`save` stored; None if it is missing or damaged."""
    try:
        return _curve(json.loads(_path(backend).read_text("utf-8")))
    except (OSError, ValueError):
        return None


def _curve(record: Any) -> CostCurve | None:
    """Return the cost curve in a JSON record, or None if the record has none."""
    try:
        rows = tuple(int(k) for k in record["rows"])
        contexts = tuple(int(c) for c in record["contexts"])
        seconds = tuple(tuple(float(t) for t in column) for column in record["seconds"])
    except (ValueError, KeyError, TypeError):
        return None
    curve = CostCurve(rows, contexts, seconds)
    return curve if curve.sound else None


def save(backend: Backend, curve: CostCurve) -> Path:
    """Write a curve to disk for this model, backend and machine; return the file's path."""
    path = _path(backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"backend": backend.name, **asdict(curve)}), "utf-8")
    return path


def name_of(backend: Backend) -> str:
    """Return a digest that identifies this model, backend and machine."""
    machine = (platform.machine(), processor(), os.cpu_count(), backend.name)
    return blake2b(repr((machine, backend.config)).encode(), digest_size=8).hexdigest()


def _path(backend: Backend) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "paradecode" / "costs" / f"{name_of(backend)}.json"


def processor() -> str:
    """Return the processor's name as the operating system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def probe(config: ModelConfig, count: int, context: int) -> Span:
    """Make a span of ``count`` rows after ``context`` slots, with logits for all rows.

    The verification of a draft has the same form.
    """
    slots = np.arange(context, context + count, dtype=np.int32)
    base, pages = context // PAGE, np.arange(-(-(context + count) // PAGE), dtype=np.int32)
    states = StatePages(WindowPages(base, pages[base:]), base, 0 if base else -1)
    return Span(
        pages=pages,
        states=states if config.keeps_states else None,
        tokens=(np.arange(count, dtype=np.int32) * 7919) % config.vocab_size,
        positions=slots,
        slots=slots,
        context=context,
        logits=np.arange(count, dtype=np.int32),
    )


# A correction of the measured cost curve by the times of later forwards.

LEVEL, SHAPE = 0.1, 0.01
"""Weights with which a forward pass's deviation changes the curve.

They are exponents for all points, and for the points next to the forward's number of rows. Higher
values follow the machine faster, but also its fluctuations.
"""
MOST = 2.0
"""The largest factor by which a forward pass counts as slower or faster than expected.

It limits the effect of other programs that run at the same time.
"""
ENOUGH = 0.02
"""Relative change of a point that makes a new curve.

A higher value makes new curves less often.
"""


class CostCorrection:
    """Corrects a measured cost curve by the seconds that later forward passes take.

    The machine may have been busy when the curve was measured, and the speeds of its memory and its
    arithmetic change separately. So each point of the grid has a factor. A forward changes the
    factors of all points a little, as if the whole machine had changed, and the factors of the
    points next to its number of rows a little more.

    Attributes:
        curve: the corrected curve.
    """

    def __init__(self, measured: CostCurve) -> None:
        self.curve = self._measured = measured
        self._level, self._shape = 1.0, [1.0] * len(measured.rows)
        self._used = list(self._shape)

    def observe(self, forwards: Iterable[tuple[int, float]], context: int) -> CostCurve:
        """Update the curve by measured forward passes, and return the new curve.

        Args:
            forwards: (rows, seconds) of each forward.
            context: number of tokens that the forwards attend to.
        """
        rows = self._measured.rows
        for count, seconds in forwards:
            at = min(max(bisect_right(rows, count) - 1, 0), len(rows) - 1)
            after = min(at + 1, len(rows) - 1)
            share = (count - rows[at]) / (rows[after] - rows[at]) if after > at else 0.0
            share = min(max(share, 0.0), 1.0)
            shape = self._shape[at] * (1 - share) + self._shape[after] * share
            off = seconds / (self._measured.at(count, context) * self._level * shape)
            off = min(max(off, 1 / MOST), MOST)
            self._level *= off**LEVEL
            self._shape[at] *= off ** (SHAPE * (1 - share))
            self._shape[after] *= off ** (SHAPE * share)
        factors = [self._level * shape for shape in self._shape]
        if any(abs(new / old - 1) > ENOUGH for new, old in zip(factors, self._used)):
            self._used = factors
            self.curve = self._corrected()
        return self.curve

    def correct(self, load: Load, forwards: Iterable[tuple[int, float]], context: int) -> None:
        """Correct the load's curve by these forwards, unless other code has replaced that curve."""
        if load.curve is self.curve:
            load.curve = self.observe(forwards, context)

    def _corrected(self) -> CostCurve:
        # More rows never cost less.
        seconds = tuple(
            tuple(accumulate(map(mul, column, self._used), max))
            for column in self._measured.seconds
        )
        return CostCurve(self._measured.rows, self._measured.contexts, seconds)
