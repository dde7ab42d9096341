"""NativeLogits equals ArrayLogits, the protocol's reference; the screened LM head is exact."""

import math
from dataclasses import replace

import numpy as np
import pytest
from naive import random_weights
from native_models import BASE, make

from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.logits import ArrayLogits, Warp
from paradecode.core.noise import key
from spans import span
from spans import span as native_span


@pytest.fixture(params=_core.available_isas(), autouse=True)
def isa(request, monkeypatch):
    monkeypatch.setenv("PARADECODE_ISA", request.param)


def both(values):
    return NativeLogits.from_array(values), ArrayLogits(values)


def rows(vocabulary, count=6, seed=0):
    """Return rows of several kinds: spread, flat, peaked, with ties, with bans."""
    rng = np.random.default_rng(seed)
    out = rng.normal(size=(count, vocabulary)).astype(np.float32)
    scales = [6.0, 0.1, 20.0, 3.0, 3.0, 1.0]
    out *= np.array(scales[:count], np.float32)[:, None]
    out[3] = np.round(out[3])
    out[4, rng.random(vocabulary) < 0.5] = -np.inf
    out[4, 0] = 1.0
    return out


SIZES = [1, 2, 17, 64, 1000, 5003]


@pytest.mark.parametrize("vocabulary", SIZES)
def test_reductions(vocabulary):
    native, array = both(rows(vocabulary))
    assert native.shape == array.shape
    assert (native.argmax() == array.argmax()).all()
    for k in (1, 2, 7, 64, 999, vocabulary, vocabulary + 5):
        ids, values = native.top_k(k)
        expected_ids, expected_values = array.top_k(k)
        assert (ids == expected_ids).all()
        assert (values == expected_values).all()
    chosen = np.random.default_rng(1).integers(0, vocabulary, (6, 9))
    assert (native.gather(chosen) == array.gather(chosen)).all()
    # The core's exponentials are float32, their sums float64.
    for name in ("log_normalizer", "margin", "entropy"):
        np.testing.assert_allclose(
            getattr(native, name)(), getattr(array, name)(), rtol=1e-6, atol=1e-6
        )
    np.testing.assert_allclose(native.log_probability(chosen), array.log_probability(chosen),
                               rtol=1e-6, atol=1e-6)  # fmt: skip


WARPS = [
    Warp(0.0), Warp(1.0), Warp(0.8), Warp(0.01), Warp(30.0), Warp(1e-9), Warp(0.7, top_k=1),
    Warp(0.7, top_k=40), Warp(1.0, top_k=100_000), Warp(1.0, top_p=0.9), Warp(0.5, top_p=0.01),
    Warp(5.0, top_p=0.999), Warp(1.0, min_p=0.05), Warp(1.0, min_p=1.0),
    Warp(0.9, top_k=50, top_p=0.8, min_p=0.02), Warp(0.9, top_p=0.95, min_p=0.1),
]  # fmt: skip


@pytest.mark.first(8)
@pytest.mark.parametrize("warp", WARPS, ids=str)
@pytest.mark.parametrize("vocabulary", [2, 64, 5003])
def test_sampling_and_probabilities(warp, vocabulary):
    values = rows(vocabulary)
    native, array = both(values)
    np.testing.assert_allclose(
        native.probabilities(warp), array.probabilities(warp), rtol=1e-9, atol=1e-15
    )
    for seed in range(30):
        keys = [key(seed, position) for position in range(6)]
        assert (native.sample(warp, keys) == array.sample(warp, keys)).all()


def test_sampling_follows_the_distribution():
    """Rare tokens must be drawn too: the test would fail if pruning ever dropped the winner."""
    values = np.log(np.array([[0.6, 0.3, 0.09, 0.01]], np.float32))
    native, _ = both(np.repeat(values, 20_000, axis=0))
    tokens = native.sample(Warp(1.0), [key(1, i) for i in range(20_000)])
    share = np.bincount(tokens, minlength=4) / 20_000
    np.testing.assert_allclose(share, [0.6, 0.3, 0.09, 0.01], atol=0.015)
    assert share[3] > 0.005


def test_select_and_bias_leave_the_original_alone():
    values = rows(300)
    native, array = both(values)
    bias = (np.array([5, 299], np.int32), np.array([100.0, -math.inf], np.float32))
    order = [4, 0, 0, 2, -1]
    biases = [None, bias, None, bias, None]
    changed = native.select(order).with_bias(biases)
    assert (changed.numpy() == array.select(order).with_bias(biases).values).all()
    assert (native.numpy() == values).all()
    assert changed.argmax()[1] == 5


@pytest.mark.parametrize("vocabulary", [17, 64, 5003])
def test_every_reduction_sees_the_changes(vocabulary):
    """Every reduction includes biases, which are stored beside the rows.

    Rows are changed twice, tokens named twice or banned, and rows shared by selects.
    """
    values = rows(vocabulary)
    rng = np.random.default_rng(2)
    biases = [
        (rng.integers(0, vocabulary, n).astype(np.int32), rng.normal(size=n).astype(np.float32) * 9)
        for n in (1, 3, 40, 0, 7, 11)
    ]
    best = [(np.array([t], np.int32), np.array([-math.inf], np.float32)) for t in values.argmax(1)]
    native, array = (x.with_bias(biases).with_bias(best).select([5, 0, 0, 3]) for x in both(values))
    assert (native.numpy() == array.values).all()
    assert (native.argmax() == array.argmax()).all()
    for one, other in zip(native.top_k(9), array.top_k(9), strict=True):
        assert (one == other).all()
    for name in ("log_normalizer", "margin", "entropy"):
        np.testing.assert_allclose(getattr(native, name)(), getattr(array, name)(), atol=2e-6)
    for warp in (Warp(0.8), Warp(0.8, top_k=5, top_p=0.9)):
        assert (native.sample(warp, [1, 2, 3, 4]) == array.sample(warp, [1, 2, 3, 4])).all()
        np.testing.assert_allclose(native.probabilities(warp), array.probabilities(warp), rtol=1e-9)


def test_many_rows_on_several_threads():
    """A model's threads share its rows; the bits equal those of one row alone."""
    config = replace(BASE, vocab_size=5003)
    span = native_span([0, 1, 2, 3], list(range(40)))
    several, alone = (make(config, threads=n).forward([span])[0].logits for n in (4, 1))
    ban = (np.array([7], np.int32), np.array([-math.inf], np.float32))
    several, alone = several.with_bias([ban] * 40), alone.with_bias([ban] * 40)
    for name in ("argmax", "log_normalizer", "margin", "entropy"):
        assert (getattr(several, name)() == getattr(alone, name)()).all()
    rows_alone = [alone.select([i]).entropy()[0] for i in range(40)]
    assert rows_alone == several.entropy().tolist()
    poisoned = several.with_bias([ban] * 33 + [(ban[0], -ban[1])] + [ban] * 6)
    with pytest.raises(BackendError, match="NaN or infinite"):
        poisoned.argmax()


def test_bad_rows_and_bad_arguments():
    values = np.zeros((1, 50), np.float32)
    for poison in (np.nan, np.inf):
        bad = values.copy()
        bad[0, 33] = poison
        native = NativeLogits.from_array(bad)
        for call in (native.argmax, lambda n=native: n.sample(Warp(0.8), [1]),
                     lambda n=native: n.sample(Warp(0.8, top_k=3), [1])):  # fmt: skip
            with pytest.raises(BackendError, match="NaN or infinite"):
                call()
    with pytest.raises(BackendError):
        NativeLogits.from_array(np.full((1, 50), -np.inf, np.float32)).argmax()
    native = NativeLogits.from_array(values)
    with pytest.raises(InvalidInput, match="ids"):
        native.gather(np.array([[50]]))
    with pytest.raises(InvalidInput, match="rows"):
        native.select([1])
    with pytest.raises(InvalidInput, match="bias ids"):
        native.with_bias([(np.array([-1], np.int32), np.array([1.0], np.float32))])
    with pytest.raises(InvalidInput, match="biases"):
        native.with_bias([None, None])
    with pytest.raises(InvalidInput, match="keys"):
        native.sample(Warp(0.5), [])


def screened(dtype: str) -> NativeBackend:
    config = replace(BASE, vocab_size=1500)
    backend = NativeBackend(config, random_weights(config), dtype=dtype)
    backend.reserve(4)
    return backend


def best(backend: NativeBackend, tokens: range, only_best: bool) -> list[int]:
    rows = span(range(1), tokens)
    logits = backend._model().forward([rows], None, only_best)[0][0]
    found: list[int] = logits.argmax().tolist()
    return found


@pytest.mark.parametrize("dtype", ["q8", "q4", "f32"])
def test_the_best_tokens_are_those_of_all_logits(dtype: str) -> None:
    backend = screened(dtype)
    for first in range(0, 1400, 13):
        rows = range(first, first + 1 + first % 3)
        assert best(backend, rows, True) == best(backend, rows, False)


def test_nothing_else_may_be_asked() -> None:
    backend = screened("q8")
    logits = backend._model().forward([span(range(1), range(2))], None, True)[0][0]
    for ask in (logits.numpy, logits.log_normalizer, logits.select([0]).entropy):
        with pytest.raises((BackendError, InvalidInput), match="best tokens"):
            ask()
    assert logits.select([1, 0]).argmax().tolist() == logits.argmax()[::-1].tolist()
    assert np.isfinite(backend.forward([span(range(1), range(3))])[0].logits.numpy()).all()
