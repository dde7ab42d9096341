"""Tests the times that are measured beside the cost curve, on a model that takes no time."""

import time
from collections.abc import Sequence

import pytest
from workloads import items, recording_of, toy

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.replay.recording import Timing
from paradecode_lab.measure.replay.timing import measure_timing

STEEP = CostCurve((1, 8), (0,), ((1e-4, 7.1e-3),))
"""A curve in which each row costs a millisecond."""
FLAT = CostCurve((1, 8), (0,), ((1e-4, 1e-4),))
ROW = 4e-4


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock by one that only the model advances."""
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


class Timed(ToyBackend):
    """A model whose forward takes 0.1 ms, and ``row`` seconds for each row after the first."""

    def __init__(self, now: list[float], row: float) -> None:
        super().__init__(toy_config(vocab_size=60, context_length=400))
        self.now, self.row = now, row

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        self.now[0] += 1e-4 + self.row * (sum(len(span.positions) for span in spans) - 1)
        return super().forward(spans)


def measured(now: list[float], row: float, curve: CostCurve) -> Timing:
    params = SamplingParams(max_tokens=24)
    recording = recording_of(toy(), items(4), params)
    engine = Engine({TARGET: Timed(now, row)}, curve=curve)
    return measure_timing(engine, curve, recording.requests, params, 4)


def test_what_a_row_takes_beyond_the_curve_is_found(now: list[float]) -> None:
    assert measured(now, 1e-3 + ROW, STEEP).row == pytest.approx(ROW)


def test_a_row_adds_at_most_what_the_curve_says_of_one(now: list[float]) -> None:
    assert measured(now, 1e-3 + ROW, FLAT).row == 0.0
    # The model is faster than this curve.
    assert measured(now, 0.0, STEEP).row == pytest.approx(0.0)
