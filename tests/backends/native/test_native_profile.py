"""The times that the parts of a forward take."""

from __future__ import annotations

import time

import numpy as np
import pytest
from native_models import BASE, make, span


@pytest.mark.parametrize("threads", [1, 3])
def test_the_parts_add_up_to_the_forwards_and_change_no_bit(threads: int) -> None:
    backend = make(BASE, threads=threads)
    rows = span(range(4), range(40))
    plain = backend.forward([rows])[0].logits.numpy()
    assert set(backend.profile(True).values()) == {0.0}
    begun = time.perf_counter()
    for _ in range(20):
        again = backend.forward([rows])[0].logits.numpy()
        np.testing.assert_array_equal(again, plain)
    elapsed = time.perf_counter() - begun
    parts = backend.profile(False)
    assert min(parts.values()) >= -1e-6
    assert 0 < sum(parts.values()) <= elapsed
    worked = {"qkv", "attention", "output", "gate+up", "down", "head", "norm", "rope", "swiglu"}
    assert all(parts[part] > 0 for part in worked)
    backend.forward([rows])
    assert set(backend.profile(False).values()) == {0.0}
