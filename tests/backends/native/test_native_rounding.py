"""A host program's rounding mode does not change the core's bits on any thread."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from naive import random_weights
from native_models import BASE, make

from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.core.logits import Warp
from spans import span

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
"""The value of FE_UPWARD in fenv.h for each architecture."""
pytestmark = pytest.mark.skipif(platform.machine() not in UPWARD, reason="fenv.h is not known")


@contextmanager
def rounding_up() -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    libm.fesetround(UPWARD[platform.machine()])
    try:
        yield
        assert libm.fegetround() == UPWARD[platform.machine()], "the host's state was changed"
    finally:
        libm.fesetround(0)


def results(values: np.ndarray, added: np.ndarray) -> list[bytes]:
    logits = NativeLogits.from_array(values)
    bias = (np.arange(len(added), dtype=np.int32), added)
    got = [logits.log_normalizer(), logits.entropy(), logits.margin()]
    for warp in (Warp(0.7), Warp(0.7, top_k=40), Warp(1.3, top_p=0.9), Warp(0.9, min_p=0.01)):
        got += [logits.probabilities(warp), logits.sample(warp, [7, 8])]
    return [array.tobytes() for array in (*got, logits.with_bias([bias, None]).numpy())]


def test_of_logits() -> None:
    # Few enough values for the calling thread to reduce them alone.
    values = np.random.default_rng(0).normal(0, 4, (2, 1000)).astype(np.float32)
    added = values[0] / 3
    expected = results(values, added)
    with rounding_up():
        assert added.tobytes() != (values[0] / 3).tobytes(), "the host does round otherwise"
        assert results(values, added) == expected


def test_of_angles() -> None:
    rows = span(range(1), range(9))
    config = BASE.altered(rope=replace(BASE.rope, theta=12345.6, scaling="llama3", factor=7.1))
    expected = make(config).forward([rows])[0].logits.numpy()
    weights = random_weights(config)
    with rounding_up():
        frequencies = config.rope.inverse_frequencies()
        backend = NativeBackend(config, weights)
    backend.reserve(1)
    assert frequencies.tobytes() != config.rope.inverse_frequencies().tobytes()
    np.testing.assert_array_equal(backend.forward([rows])[0].logits.numpy(), expected)


@pytest.mark.parametrize("dtype", ["q4", "q8", "bf16", "f16"])
def test_of_packed_weights(dtype: str) -> None:
    rows = span(range(1), range(9))
    backend, weights = make(BASE, dtype=dtype), random_weights(BASE)
    expected = backend.forward([rows])[0].logits.numpy()
    with rounding_up():  # New threads, too, round as the one that starts them.
        backend._load(weights, dtype, lambda done, total: None)
    np.testing.assert_array_equal(backend.forward([rows])[0].logits.numpy(), expected)
