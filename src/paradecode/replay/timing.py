"""What a plain step takes in the engine beside what the cost curve says of its forward.

The curve was measured forward upon forward. Between two forwards of a real step Python runs, on
caches that the forward has emptied, so both take longer; by how much is measured here. What a
forward loses to this does not grow with its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from paradecode.core.decoder import Steps
from paradecode.core.logits import Logits, Warp
from paradecode.core.request import Forward
from paradecode.core.sampling import SamplingParams
from paradecode.core.sequence import Sequence as LiveRequest
from paradecode.core.tree import EMPTY
from paradecode.decoders.autoregressive.plain import Plain
from paradecode.decoders.autoregressive.verify import coupled
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.replay.driving import finish
from paradecode.replay.recording import Request, Timing

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
    python, extra = [], []
    plain = SamplingParams(max_tokens=64, ignore_eos=True)
    for request in chosen:
        marks: list[float] = []

        def mark(sequence: LiveSequence, marks: list[float] = marks) -> None:
            if not marks:
                marks.append(sequence.timer.target)

        sequence = finish(engine, GenerationRequest(request.prompt, Plain, plain), mark)
        steps = len(sequence.trace) - 1
        if steps > 0:
            forwards = sequence.timer.target - marks[0]
            length = sequence.prompt_length
            known = sum(curve.at(1, length + n) for n in range(steps))
            extra.append((forwards - known) / steps)
            python.append((sequence.stats.decode_seconds - forwards) / steps)
    if not python:
        return Timing()
    last = _LastReply()
    one = SamplingParams(max_tokens=1, ignore_eos=True)
    finish(engine, GenerationRequest(chosen[0].prompt, lambda: last, one))
    warp = Warp(params.temperature, params.top_k, params.top_p, params.min_p)
    argmax = _seconds(lambda: last.logits.argmax())  # The curve contains it.
    sample = _seconds(lambda: last.logits.sample(warp, [1])) if params.temperature else argmax
    return Timing(
        forward=float(np.median(extra)),
        python=float(np.median(python)),
        top_k=_seconds(lambda: last.logits.top_k(k)),
        sample=max(0.0, sample - argmax),
    )


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
