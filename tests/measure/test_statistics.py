"""Tests of ratios of totals and their intervals."""

import numpy as np
import pytest

from paradecode_lab.measure import statistics
from paradecode_lab.measure.statistics import ratio, ratio_of_ratios


def interval(columns, *others, **settings):
    """Compute the interval of columns, one list for each quantity."""
    return statistics.interval(np.transpose(columns), *others, **settings)


def test_ratio_of_totals_is_not_the_mean_of_ratios() -> None:
    # 10 tokens in 1 s and 1000 tokens in 10 s are 1010 / 11, and not (10 + 100) / 2.
    found = interval([[10, 1000], [1, 10]], ratio)
    assert found.value == pytest.approx(1010 / 11)


def test_constant_speed_has_no_spread() -> None:
    tokens = np.arange(1, 50)
    found = interval([tokens, tokens / 25], ratio)
    assert (found.low, found.high) == pytest.approx((25, 25))


def test_paired_ratio_is_sharper_than_its_parts() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(20, 100, 60).astype(float)
    difficulty = np.exp(rng.normal(0, 0.6, 60))
    slow, fast = tokens / 50 * difficulty, tokens / 100 * difficulty
    alone = interval([tokens, fast], ratio)
    paired = interval([tokens, fast, tokens, slow], ratio_of_ratios)
    assert paired.value == pytest.approx(2)
    assert paired.high - paired.low < 1e-6 < alone.high - alone.low


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, hits, trials = np.random.default_rng(2), 0, 300
    for trial in range(trials):
        tokens = rng.integers(20, 200, 80).astype(float)
        seconds = tokens / 100 * rng.gamma(25, 1 / 25, 80)
        found = interval([tokens, seconds], ratio, resamples=500, seed=trial)
        assert found is not None
        hits += found.low <= 100 <= found.high
    assert 0.90 <= hits / trials <= 0.98


def test_turns_of_a_conversation_are_drawn_together() -> None:
    rng = np.random.default_rng(3)
    speed = np.repeat(np.exp(rng.normal(0, 0.5, 20)), 5)  # Each of 20 prompts has five equal turns.
    tokens = np.full(100, 50.0)
    names = [f"p{i // 5}" for i in range(100)]
    apart = interval([tokens, tokens / speed], ratio)
    together = interval([tokens, tokens / speed], ratio, names)
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low > 1.7 * (apart.high - apart.low)


@pytest.mark.parametrize("columns", [[[], []], [[0.0, 0.0], [0.0, 0.0]], [[5.0], [0.0]]])
def test_nothing_to_measure_gives_nothing(columns: list[list[float]]) -> None:
    assert interval(columns, ratio) is None


def test_same_seed_same_interval() -> None:
    columns = np.random.default_rng(4).uniform(1, 2, (2, 30))
    assert interval(columns, ratio, seed=7) == interval(columns, ratio, seed=7)
    assert interval(columns, ratio, seed=7) != interval(columns, ratio, seed=8)
