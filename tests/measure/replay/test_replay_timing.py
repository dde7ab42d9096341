"""What is measured in the engine beside the cost curve, on a model that takes no time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest
from workloads import items, recording_of, toy

from paradecode.backends.interface import Backend, Span, SpanResult
from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.replay.recording import Timing
from paradecode_lab.measure.replay.timing import measure_timing

STEEP = CostCurve((1, 8), (0,), ((1e-4, 7.1e-3),))
"""A millisecond for each row."""
FLAT = CostCurve((1, 8), (0,), ((1e-4, 1e-4),))
ROW = 4e-4


class SlowRows(ToyBackend):
    """Each row after the first takes ROW seconds more than a model with STEEP's curve would."""

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        more = sum(len(span.positions) for span in spans) - 1
        time.sleep(more * (ROW + 1e-3))
        return super().forward(spans)


def measured(models: Mapping[str, Backend], curve: CostCurve) -> Timing:
    params = SamplingParams(max_tokens=24)
    recording = recording_of(toy(), items(4), params)
    return measure_timing(Engine(models, curve=curve), curve, recording.requests, params, 4)


def test_what_a_row_takes_beyond_the_curve_is_found():
    slow = {TARGET: SlowRows(toy_config(vocab_size=60, context_length=400))}
    assert 0.25 * ROW < measured(slow, STEEP).row <= 1e-3


def test_a_row_adds_at_most_what_the_curve_says_of_one():
    slow = {TARGET: SlowRows(toy_config(vocab_size=60, context_length=400))}
    assert measured(slow, FLAT).row == 0.0
    steps = measured(toy(), STEEP)
    assert steps.row == pytest.approx(0.0)  # The toy is faster than this curve.
    assert steps.python > 0
