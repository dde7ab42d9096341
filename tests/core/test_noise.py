"""The noise is part of the contract: seeded outputs must never change silently."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core import noise
from paradecode.core.noise import GUMBEL_SPREAD, MASK64, Purpose, gumbel, key, mix, uniform

COUNT = 200_000
IDS = np.arange(COUNT)
EULER = 0.5772156649015329


def ks_distance(samples: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance to the standard Gumbel distribution."""
    expected = np.exp(-np.exp(-np.sort(samples)))
    steps = np.arange(len(samples) + 1) / len(samples)
    return max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())


def test_mix_is_splitmix64():
    # First outputs of the published generator with state 0 and 0x9E3779B97F4A7C15.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(noise.GOLDEN) == 0x6E789E6AA1B965F4


def test_golden_values():
    assert key(0, 0) == 0x238275BC38FCBE91
    assert key(1, 2) == 0xE68E6FC01DF08360
    assert key(1, 2, Purpose.DRAFT) == 0xE930AF93AF0DAF48
    assert key(-1, 10**6, Purpose.CHILD_SEED) == 0xE8994E7560EF16F5
    ids = np.array([0, 1, 2, 1000, 151935])
    np.testing.assert_allclose(
        uniform(key(7, 3), ids), [0.20749162, 0.07775385, 0.15470113, 0.82514298, 0.91371728],
        atol=5e-9,
    )  # fmt: skip
    np.testing.assert_allclose(
        gumbel(key(7, 3), ids), [-0.45277121, -0.93774188, -0.62393655, 1.64922606, 2.40534812],
        atol=5e-9,
    )  # fmt: skip


def test_purposes_keep_their_numbers():
    assert [(p.name, int(p)) for p in Purpose] == [
        ("TOKEN", 0), ("ACCEPT", 1), ("DRAFT", 2), ("ORDER", 3), ("CHILD_SEED", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("base", [key(0, 0), key(123, 456), key(MASK64, 9, Purpose.DRAFT)])
def test_law_is_standard_gumbel(base):
    samples = gumbel(base, IDS)
    limit = 1.63 / np.sqrt(COUNT)  # 1 % critical value; the keys are fixed, so no flakes.
    assert ks_distance(samples) < limit
    assert ks_distance(0.98 * samples) > limit  # The test can tell.
    assert abs(samples.mean() - EULER) < 0.01
    assert abs(samples.var() - np.pi**2 / 6) < 0.03


@pytest.mark.parametrize(("one", "other"), [
    (key(1, 5), key(1, 6)), (key(1, 5), key(2, 5)),
    (key(1, 5, Purpose.TOKEN), key(1, 5, Purpose.ACCEPT)),
    (key(1, 5, Purpose.ACCEPT), key(1, 5, Purpose.DRAFT)), (key(0, 1), key(1, 0)),
], ids=["positions", "seeds", "token-accept", "accept-draft", "swapped"])  # fmt: skip
def test_streams_are_uncorrelated(one, other):
    a, b = uniform(one, IDS), uniform(other, IDS)
    limit = 4 / np.sqrt(COUNT)
    for lag in (0, 1, 2):
        assert abs(np.corrcoef(a[lag:], b[: COUNT - lag])[0, 1]) < limit
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < limit


def test_positions_are_independent_for_one_token():
    """One token's noise is independent over positions, as a sequence uses it."""
    values = np.array([uniform(key(3, p), np.array([42]))[0] for p in range(20_000)])
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / np.sqrt(len(values))


def test_keys_do_not_collide():
    keys = {key(s, p, use) for s in range(40) for p in range(40) for use in Purpose}
    assert len(keys) == 40 * 40 * len(Purpose)


def test_spread_bounds_the_noise(monkeypatch):
    """The extreme uniform numbers give the extreme noise, whatever the key."""
    lowest, highest = 0.5 * 2.0**-32, (2**32 - 0.5) * 2.0**-32
    monkeypatch.setattr(noise, "uniform", lambda base, ids: np.array([lowest, highest]))
    low, high = gumbel(0, np.arange(2))
    assert np.isfinite([low, high]).all()
    assert -3.14 < low < -3.12
    assert 22.87 < high < 22.88
    assert GUMBEL_SPREAD - 0.2 < high - low < GUMBEL_SPREAD


@given(st.integers(0, MASK64), st.lists(st.integers(0, 1 << 31), min_size=1, max_size=20))
def test_uniform_stays_inside_and_is_elementwise(base, ids):
    together = uniform(base, np.array(ids, np.int64))
    assert ((together > 0) & (together < 1)).all()
    alone = [uniform(base, np.array([i], np.int64))[0] for i in ids]
    assert together.tolist() == alone
    assert uniform(base, np.array(ids, np.uint32)).tolist() == alone


@given(st.integers(0, MASK64), st.integers(0, 10))
def test_uniform_matches_python_integers(base, token):
    """The vector arithmetic equals the scalar definition, wrapped to 64 bits."""
    expected = ((mix((base + token * noise.GOLDEN) & MASK64) >> 32) + 0.5) / 2**32
    assert uniform(base, np.array([token]))[0] == expected


@given(st.integers(-(1 << 63), MASK64), st.integers(0, 1 << 24))
def test_keys_are_64_bit(seed, position):
    assert 0 <= key(seed, position) <= MASK64
    assert key(seed, position) == key(seed + (1 << 64), position)
