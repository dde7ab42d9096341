"""Measures how much longer a step in the engine takes than the cost curve says of its forward.

The curve was measured with forwards that follow one another directly. In a real step Python runs
between two forwards. Python and the forward empty the processor's caches for each other, so both
take longer. This module measures the difference, with :mod:`paradecode_lab.measure.replay.between`
for Python. Plain decoding and a method with many rows in a forward take turns, so that a slow
second of the machine slows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Decoder
from paradecode.core.logits import Logits, Warp
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.plain import Plain
from paradecode.methods.specs import parse
from paradecode_lab.measure.replay.recording import Request, Timing
from paradecode_lab.measure.serving import WatchedPlain, finish

MOST_REQUESTS = 8
REPEATS = 20
WIDE = "prompt-lookup(budget=fixed)"
"""A method whose forwards have many rows."""
ENOUGH_ROWS = 2.5
"""The least mean number of rows in a request's forwards from which the cost of a row is derived."""


def measure_timing(
    engine: Engine,
    curve: CostCurve,
    requests: Sequence[Request],
    params: SamplingParams,
    k: int,
) -> Timing:
    """Decode a few of the requests once more, and measure the times.

    Args:
        params, k: sampling parameters and number of entries of the recording.
    """
    chosen = requests[:: max(1, len(requests) // MOST_REQUESTS)][:MOST_REQUESTS]
    found = [
        [_steps(engine, curve, request.prompt, each) for each in (Plain, parse(WIDE))]
        for request in chosen
    ]
    plain = [step for step, _ in found if step is not None]
    if not plain:
        return Timing()
    seen: list[Logits] = []
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    watched = WatchedPlain(lambda seq, reply: seen.append(reply.logits))
    finish(engine, GenerationRequest(chosen[0].prompt, lambda: watched, one))
    logits = seen[-1]
    warp = Warp(params.temperature, params.top_k, params.top_p, params.min_p)
    argmax = _seconds(lambda: logits.argmax())  # The cost curve already contains the argmax.
    sample = _seconds(lambda: logits.sample(warp, [1])) if params.temperature else argmax
    return Timing(
        forward=float(np.median([step.forward for step in plain])),
        row=_for_each_row(((one, wide) for one, wide in found), curve),
        python=float(np.median([step.python for step in plain])),
        top_k=_seconds(lambda: logits.top_k(k)),
        sample=max(0.0, sample - argmax),
    )


@dataclass(frozen=True)
class _Steps:
    """Means over the steps of a request after its first commit.

    Attributes:
        rows: number of rows in a forward.
        forward: seconds of a forward in addition to the cost curve.
        python: seconds of a step outside its forward.
    """

    rows: float
    forward: float
    python: float


def _for_each_row(pairs: Iterable[tuple[_Steps | None, _Steps | None]], curve: CostCurve) -> float:
    """Return the seconds in addition to the cost curve that each row after the first adds.

    The result is at most the curve's own cost of a row, because reading lost data takes less time
    than computing a row; a larger value means that the machine was slow for a while.

    Args:
        pairs: steps of plain decoding, and steps of ``WIDE``, for the same requests.
    """
    found = [
        (wide.forward - plain.forward) / (wide.rows - 1)
        for plain, wide in pairs
        if plain is not None and wide is not None and wide.rows >= ENOUGH_ROWS
    ]
    most = (curve.at(8, 0) - curve.at(1, 0)) / 7
    return float(np.clip(np.median(found), 0.0, max(most, 0.0))) if found else 0.0


def _steps(
    engine: Engine, curve: CostCurve, prompt: NDArray[np.int32], decoder: Callable[[], Decoder]
) -> _Steps | None:
    first: list[float] = []

    def mark(sequences: Sequence[LiveSequence]) -> None:
        if not first:
            first.append(sequences[0].timer.target)

    params = SamplingParams(max_tokens=64, ignore_eos=True)
    sequence = finish(engine, GenerationRequest(prompt, decoder, params, salt="timing"), mark)
    later = sequence.trace[1:]
    if not later:
        return None
    rows = [1 + step.drafted for step in later]
    ends = np.cumsum([len(step.tokens) for step in sequence.trace[:-1]])
    known = sum(
        curve.at(count, sequence.prompt_length + int(end) - 1)
        for count, end in zip(rows, ends, strict=True)
    )
    forwards = sequence.timer.target - first[0]
    return _Steps(
        sum(rows) / len(later),
        (forwards - known) / len(later),
        (sequence.stats.decode_seconds - forwards) / len(later),
    )


def _seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return float(np.median(times))
