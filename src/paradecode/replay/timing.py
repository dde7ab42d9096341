"""What a plain step takes in the engine beside what the cost curve says of its forward.

The curve was measured forward upon forward. Between two forwards of a real step Python runs, on
caches that the forward has emptied, so both take longer; by how much is measured here. What a
forward loses to this does not grow with its rows. Python's first pass over its code is slowed most,
a loop's later passes hardly, so two methods are timed, one that does little and one that does much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Decoder, Steps
from paradecode.core.logits import Logits, Warp
from paradecode.core.request import Forward
from paradecode.core.sampling import SamplingParams
from paradecode.core.sequence import Sequence as LiveRequest
from paradecode.core.tree import EMPTY
from paradecode.decoders.autoregressive.plain import Plain
from paradecode.decoders.autoregressive.verify import coupled
from paradecode.decoders.registry import parse
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.replay.driving import finish
from paradecode.replay.recording import HEAVY, Request, Timing

MOST_REQUESTS = 8
REPEATS = 20


def measure_timing(
    engine: Engine,
    curve: CostCurve,
    requests: Sequence[Request],
    params: SamplingParams,
    k: int,
) -> Timing:
    """Decode a few of the requests once more, plainly, with the clock on.

    Args:
        params, k: of the recording.
    """
    chosen = requests[:: max(1, len(requests) // MOST_REQUESTS)][:MOST_REQUESTS]
    found = [_steps(engine, curve, request.prompt, Plain) for request in chosen]
    plain = [step for step in found if step is not None]
    if not plain:
        return Timing()
    heavy = [_steps(engine, curve, request.prompt, parse(HEAVY)) for request in chosen]
    last = _LastReply()
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    finish(engine, GenerationRequest(chosen[0].prompt, lambda: last, one))
    warp = Warp(params.temperature, params.top_k, params.top_p, params.min_p)
    argmax = _seconds(lambda: last.logits.argmax())  # The curve contains it.
    sample = _seconds(lambda: last.logits.sample(warp, [1])) if params.temperature else argmax
    return Timing(
        forward=float(np.median([extra for extra, _ in plain])),
        python=float(np.median([python for _, python in plain])),
        heavy=float(np.median([step[1] for step in heavy if step is not None])),
        top_k=_seconds(lambda: last.logits.top_k(k)),
        sample=max(0.0, sample - argmax),
    )


def _steps(
    engine: Engine, curve: CostCurve, prompt: NDArray[np.int32], decoder: Callable[[], Decoder]
) -> tuple[float, float] | None:
    """Seconds of a step beyond the curve's forward of one row, and outside of its forward."""
    first: list[float] = []

    def mark(sequence: LiveSequence) -> None:
        if not first:
            first.append(sequence.timer.target)

    params = SamplingParams(max_tokens=64, ignore_eos=True)
    sequence = finish(engine, GenerationRequest(prompt, decoder, params, salt="timing"), mark)
    steps = sequence.forwards - 1
    if steps <= 0:
        return None
    forwards = sequence.timer.target - first[0]
    known = sum(curve.at(1, sequence.prompt_length + n) for n in range(steps))
    return (forwards - known) / steps, (sequence.stats.decode_seconds - forwards) / steps


class _LastReply:
    """Plain decoding that leaves its last logits behind."""

    logits: Logits

    def decode(self, seq: LiveRequest) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending)
            self.logits = reply.logits
            seq.commit(coupled(seq, EMPTY, reply))


def _seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return float(np.median(times))
