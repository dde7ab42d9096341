"""ArrayLogits agrees with definitions that are written out token by token."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core import logits as logits_module
from paradecode.core.errors import BackendError
from paradecode.core.logits import ArrayLogits, Warp, kept
from paradecode.core.noise import gumbel, key
from paradecode.core.sampling import MIN_TEMPERATURE
from tiers import examples

ties = st.lists(st.integers(-4, 4), min_size=2, max_size=12)
"""Rows with many equal values."""
warps = st.builds(
    Warp,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.11, 0.47, 0.87, 1.0]),  # Not what equal shares sum to.
    min_p=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
)


def order(row: list[float]) -> list[int]:
    """Return the tokens from best to worst; ties go to the lowest id."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def warped(row: list[float], warp: Warp) -> list[float]:
    """Apply the definition of Warp, step by step."""
    p = softmax([value / warp.temperature for value in row])
    keep = [token for token in order(row) if math.isfinite(row[token])]
    if warp.top_k:
        keep = keep[: warp.top_k]
    if warp.top_p < 1:
        total, mass, nucleus = sum(p[t] for t in keep), 0.0, []
        for token in keep:
            nucleus.append(token)
            mass += p[token] / total
            if mass >= warp.top_p - 1e-12:
                break
        keep = nucleus
    keep = [token for token in keep if p[token] >= warp.min_p * p[keep[0]] * (1 - 1e-12)]
    total = sum(p[t] for t in keep)
    return [p[token] / total if token in keep else 0.0 for token in range(len(row))]


@given(ties)
def test_argmax_and_top_k_break_ties_to_the_lowest_id(row):
    logits = ArrayLogits(np.array([row, row[::-1]], np.float32))
    assert logits.argmax().tolist() == [order(row)[0], order(row[::-1])[0]]
    for k in (1, 2, len(row), len(row) + 5):
        ids, values = logits.top_k(k)
        assert ids.tolist() == [order(row)[:k], order(row[::-1])[:k]]
        assert values[0].tolist() == [row[token] for token in order(row)[:k]]
        assert (ids.dtype, values.dtype) == (np.int32, np.float32)


@given(ties)
def test_statistics(row):
    logits = ArrayLogits(np.array([row], np.float32))
    p = softmax(row)
    best, second = sorted(p, reverse=True)[:2]
    assert logits.margin()[0] == pytest.approx(best - second, abs=1e-12)
    assert logits.entropy()[0] == pytest.approx(-sum(x * math.log(x) for x in p), abs=1e-12)
    assert logits.log_normalizer()[0] == pytest.approx(math.log(sum(map(math.exp, row))), abs=1e-12)
    ids = np.array([[0, len(row) - 1]])
    assert logits.log_probability(ids)[0] == pytest.approx([math.log(p[0]), math.log(p[-1])])
    assert logits.gather(ids)[0].tolist() == [row[0], row[-1]]


def test_statistics_with_banned_tokens():
    logits = ArrayLogits(np.array([[0.0, -np.inf, 0.0], [-np.inf, 3.0, -np.inf]], np.float32))
    assert logits.entropy() == pytest.approx([math.log(2), 0.0])
    assert logits.margin() == pytest.approx([0.0, 1.0])
    assert logits.log_probability(np.array([[1], [1]])).ravel().tolist() == [-np.inf, 0.0]


def test_huge_logits_do_not_overflow():
    logits = ArrayLogits(np.array([[1e4, 1e4, -1e4]], np.float32))
    assert logits.entropy() == pytest.approx([math.log(2)])
    assert logits.probabilities(Warp(1.0))[0] == pytest.approx([0.5, 0.5, 0.0])


def test_one_token_vocabulary():
    logits = ArrayLogits(np.array([[2.0]], np.float32))
    assert logits.margin().tolist() == [1.0]
    assert logits.sample(Warp(1.0), [3]).tolist() == [0]


@examples(300)
@given(ties, warps)
def test_probabilities_follow_the_definition(row, warp):
    got = ArrayLogits(np.array([row], np.float32)).probabilities(warp)[0]
    np.testing.assert_allclose(got, warped(row, warp), atol=1e-12)


def test_probabilities_of_a_large_row():
    """Probabilities of a flat row are exact, although its nucleus is searched in several steps."""
    row = np.random.default_rng(0).normal(0, 0.1, 3000)
    for warp in (Warp(1.0, top_p=0.01), Warp(1.0, top_p=0.7), Warp(1.0, top_k=2999, top_p=0.999)):
        got = ArrayLogits(row[None]).probabilities(warp)[0]
        np.testing.assert_allclose(got, warped(row.tolist(), warp), atol=1e-14)


@pytest.mark.parametrize(("top_p", "expected"), [
    (0.49, [0]), (0.5, [0]), (0.51, [0, 1]), (0.75, [0, 1]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2, 3]),
])  # fmt: skip
def test_nucleus_boundaries(top_p, expected):
    """With probabilities 1/2, 1/4, 1/8, 1/8, a set that reaches top_p exactly is enough."""
    row = np.log2([0.5, 0.25, 0.125, 0.125]) * np.log(2.0)
    ids, _ = kept(row, Warp(1.0, top_p=top_p))
    assert ids.tolist() == expected


def test_min_p_and_top_k_boundaries():
    row = np.array([0.0, np.log(0.5), np.log(0.25), np.log(0.25)])
    assert kept(row, Warp(1.0, min_p=0.25))[0].tolist() == [0, 1, 2, 3]
    assert kept(row, Warp(1.0, min_p=0.2501))[0].tolist() == [0, 1]
    assert kept(row, Warp(1.0, min_p=1.0))[0].tolist() == [0]
    assert kept(row, Warp(1.0, top_k=3))[0].tolist() == [0, 1, 2]
    assert kept(row, Warp(1.0, top_k=99))[0].tolist() == [0, 1, 2, 3]
    assert kept(row, Warp(0.0))[0].tolist() == [0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_rows_are_errors(bad):
    values = np.zeros((3, 8), np.float32)
    values[1, 5] = bad
    logits = ArrayLogits(values)
    with pytest.raises(BackendError):
        logits.argmax()
    with pytest.raises(BackendError):
        logits.sample(Warp(1.0), [1, 2, 3])
    assert logits.select([0, 2]).argmax().tolist() == [0, 0]


def test_top_k_of_a_nan_row_is_an_error():
    with pytest.raises(BackendError):
        ArrayLogits(np.array([[1.0, np.nan, 0.0]], np.float32)).top_k(1)


def test_a_row_with_nothing_left_is_an_error():
    logits = ArrayLogits(np.full((1, 4), -np.inf, np.float32))
    for call in (logits.argmax, lambda: logits.probabilities(Warp(1.0))):
        with pytest.raises(BackendError):
            call()


def test_with_bias_leaves_the_original_alone():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    logits = ArrayLogits(values)
    bias = (np.array([2, 0], np.int32), np.array([-np.inf, 10], np.float32))
    changed = logits.with_bias([bias, None])
    assert changed.values.tolist() == [[10, 1, -np.inf], [3, 4, 5]]
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert changed.argmax().tolist() == [0, 2]
    with pytest.raises(ValueError, match="zip"):
        logits.with_bias([None])


def test_select_reorders():
    logits = ArrayLogits(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert logits.select([2, 0, 2]).values.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert logits.select([]).shape == (0, 2)


# Sampling.


@given(ties, warps, st.integers(0, (1 << 64) - 1))
def test_sample_is_argmax_of_noisy_kept_tokens(row, warp, base):
    values = np.array([row], np.float32)
    chosen = int(ArrayLogits(values).sample(warp, [base])[0])
    p = warped(row, warp)
    noise = gumbel(base, np.arange(len(row)))
    noisy = [value / warp.temperature + noise[token] for token, value in enumerate(row)]
    assert p[chosen] > 0
    best = max(noisy[token] for token in range(len(row)) if p[token] > 0)
    assert noisy[chosen] == pytest.approx(best, abs=1e-9)


def test_pruning_by_the_noise_spread_changes_nothing():
    rng = np.random.default_rng(1)
    for scale in (1.0, 10.0, 40.0):
        values = (scale * rng.normal(size=(40, 2000))).astype(np.float32)
        keys = [key(9, position) for position in range(40)]
        noise = np.stack([gumbel(base, np.arange(2000)) for base in keys])
        expected = (values.astype(np.float64) + noise).argmax(axis=1)
        assert ArrayLogits(values).sample(Warp(1.0), keys).tolist() == expected.tolist()


def test_temperature_zero_ignores_the_noise():
    values = np.random.default_rng(2).normal(size=(5, 30))
    logits = ArrayLogits(values)
    assert logits.sample(Warp(), [0] * 5).tolist() == logits.argmax().tolist()


def test_the_lowest_temperature_does_not_overflow():
    logits = ArrayLogits(np.array([[-1.0, 4.0, 3.9], [-3e38, -3.1e38, -np.inf]], np.float32))
    assert logits.sample(Warp(MIN_TEMPERATURE), [1, 2]).tolist() == [1, 0]
    assert logits.probabilities(Warp(MIN_TEMPERATURE)).tolist() == [[0, 1, 0], [1, 0, 0]]


def chi_square(warp: Warp, draws: int = 20_000) -> tuple[float, int]:
    """Compare ``sample`` with ``probabilities``: Pearson's statistic and its degrees of freedom."""
    row = np.random.default_rng(3).normal(0, 0.9, 12).astype(np.float32)
    expected = draws * ArrayLogits(row[None]).probabilities(warp)[0]
    rows = ArrayLogits(np.tile(row, (draws, 1)))
    chosen = rows.sample(warp, [key(seed, seed % 7) for seed in range(draws)])
    counts = np.bincount(chosen, minlength=12)
    likely = expected > 0
    assert counts[~likely].sum() == 0
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    return float(statistic), int(likely.sum()) - 1


def critical(freedom: int) -> float:
    """Return the upper 0.01 % point of chi-square (Wilson and Hilferty 1931)."""
    scale = 2 / (9 * freedom)
    return freedom * (1 - scale + 3.719 * math.sqrt(scale)) ** 3


WARPS = [Warp(1.0), Warp(0.6), Warp(1.5, top_k=7), Warp(1.0, top_p=0.8), Warp(1.2, 9, 0.95, 0.05)]


@pytest.mark.first(3)
@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_samples_follow_the_warped_distribution(warp):
    statistic, freedom = chi_square(warp)
    assert freedom >= 2
    assert statistic < critical(freedom)


@pytest.mark.parametrize("warp", [Warp(1.0), Warp(1.2, 9, 0.95, 0.05)], ids=str)
def test_the_distribution_test_notices_wrong_noise(warp, monkeypatch):
    monkeypatch.setattr(logits_module, "gumbel", lambda base, ids: 0.9 * gumbel(base, ids))
    statistic, freedom = chi_square(warp)
    assert statistic > critical(freedom)
