"""A forward touches only the memory that its rows need; its profile adds up to its time."""

import sys
import time
from collections import defaultdict
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from native_models import BASE, make

from paradecode.backends.interface import StepsInput
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.logits import Warp
from paradecode.core.multi_step import MultiStep
from paradecode.models.config import Rope
from paradecode.serve.worker.memory import resident
from spans import span

VOCABULARY, PAGES, BIN = 12_000, 20, 64
WIDE = replace(BASE, vocab_size=VOCABULARY)
"""A model whose LM head holds most of its weights, as in small models."""


def read(backend: NativeBackend, rows: int, context: int, only_best: bool) -> None:
    tokens = [(7 * context + i) % VOCABULARY for i in range(rows)]
    asked = span(range(PAGES), tokens, context)
    backend._model().forward([asked], None, only_best)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_no_forward_costs_five_times_what_others_like_it_do(dtype: str) -> None:
    backend = make(WIDE, dtype=dtype, pages=PAGES)
    backend.traffic(True)
    for rows, only_best in [(1, True), (1, False), (2, True), (5, True), (5, False), (40, False)]:
        for context in range(0, 250, 2 if rows < 3 else 5):
            read(backend, rows, context, only_best)
    stepper = backend.stepper(MultiStep(), np.zeros(0, np.int32), Warp(0.0), 0, False)
    stepper.enter(np.arange(100, dtype=np.int32), 150, 150, 1)
    stepper.hold(np.arange(PAGES, dtype=np.int32))
    given = StepsInput(None, (0.0, 0.0, 0.0), 1, 1, [0], [0], 60.0)
    (steps,) = backend.steps([stepper], given)
    seen = backend.traffic(False)
    assert len(steps) == 150
    assert [one.context for one in seen[-150:]] == [*range(99, 249)]
    alike = defaultdict(list)
    for one in seen:
        alike[one.rows, one.context // BIN].append(one.nbytes)
    assert all(max(costs) <= 5 * median(costs) for costs in alike.values())


def test_bytes_are_those_of_the_weights_the_cache_and_the_logits() -> None:
    backend = make(WIDE, dtype="q8", pages=PAGES)
    read(backend, 40, 0, False)

    def cost(rows: int, context: int, only_best: bool = False) -> int:
        read(backend, rows, context, only_best)  # Its memory is there now.
        backend.traffic(True)
        read(backend, rows, context, only_best)
        (one,) = backend.traffic(False)
        assert (one.rows, one.context) == (rows, context)
        return one.nbytes

    row = 4 * WIDE.hidden_size + backend.work()["head"][0] / VOCABULARY  # of the embeddings
    logits = 4 * VOCABULARY
    about = backend.weight_bytes + row + logits + 42 * backend.slot_bytes[0]
    assert cost(1, 40) == pytest.approx(about, rel=0.01)
    assert cost(1, 200) - cost(1, 40) == 160 * backend.slot_bytes[0]
    assert cost(1, 40, True) < 0.9 * cost(1, 40)  # The head was screened.
    assert cost(40, 0) > cost(1, 0) + 39 * logits
    read(backend, 1, 0, False)
    assert backend.traffic(False) == []


@pytest.mark.skipif(resident() == 0 or sys.platform != "linux", reason="says no current memory")
def test_no_row_waits_for_the_memory_of_many_later_ones() -> None:
    """A row takes only its own memory from the system, not the memory for later rows.

    The system gives memory in large pages; keys and values of 512 tokens need many of them.
    """
    wide = BASE.altered(heads=8, kv_heads=8, head_dim=128, rope=Rope(dim=128), layers=8)
    backend = make(replace(wide, context_length=2048), pages=128)
    held, grown = resident(), []
    for context in range(800):
        backend.forward([span(range(128), [context % 100], context)])
        held, before = resident(), held
        grown.append(held - before)
    all_of_512 = 512 * backend.slot_bytes[0]
    assert sum(grown) > all_of_512
    assert max(grown[1:]) < all_of_512 / 4


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
