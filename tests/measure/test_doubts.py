"""Tests of warnings about impossible speed-ups, and about runs that are too short."""

import pytest

from paradecode.timing.doubts import is_suspicious, verifies
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.too_short import too_short


def test_forwards_bound_a_speed_up():
    assert is_suspicious(2.0, later=120, forwards=100)
    assert not is_suspicious(1.2, later=120, forwards=100)
    assert not is_suspicious(1.25, later=120, forwards=100)  # Clocks are accurate to about 5 %.
    assert not is_suspicious(9.0, later=0, forwards=0)  # All tokens came with the prompt's forward.


@pytest.mark.parametrize(("method", "guarantee", "bound"), [
    ("suffix", "exact", True), ("pearl", "exact", True), ("suffix", "distribution", True),
    ("prompt-lookup", "lossy", True), ("unified-layer-skip", "lossy", False), ("any", "", False),
])  # fmt: skip
def test_the_bound_is_of_methods_that_verify(method, guarantee, bound):
    assert verifies(method, guarantee) is bound


@pytest.mark.parametrize(("prompts", "tokens", "low", "said"), [
    (96, 120.0, 1.3, ""),
    (13, 8.0, 1.3, "Too short: 13 prompts of 8 tokens; the interval of a is 1.30 to 1.50."),
    (5, 90.0, 1.3, "Too short: 5 prompts of 90 tokens; the interval of a is 1.30 to 1.50."),
    (96, 120.0, 0.4, "Too short: 96 prompts of 120 tokens; the interval of a is 0.40 to 1.50."),
    (1, 120.0, 1.5, "Too short: 1 prompt of 120 tokens; one prompt has no interval."),
])  # fmt: skip
def test_a_run_that_is_too_short_says_so(prompts, tokens, low, said):
    found = {"b": Interval(1.0, 0.99, 1.01), "a": Interval(1.4, low, 1.5), "c": None}
    assert too_short(prompts, tokens, found) == said


def test_without_a_ratio_there_is_nothing_to_doubt():
    assert too_short(1, 1.0, {"a": None}) == ""
