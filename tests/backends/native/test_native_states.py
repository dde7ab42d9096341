"""The core reads a state once in a forward and writes it once a page; trees equal single rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_models import random_weights

from paradecode.backends.interface import Span, StatePages, WindowPages
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidInput
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Layer
from paradecode.models.recurrence import Convolution, Recurrence
from paradecode.models.small_states import Cells, LinearUnit, SelectiveScan
from paradecode.models.weights import Tensor

HEADS = Recurrence(8, 4, 64, 64, width=4, skip=True, gate="before", out_norm="head")
CONFIG = ModelConfig("x", "x", 40, 32, (Layer((HEADS,)),), 512)
STATE = 4 * HEADS.key_dim * HEADS.values
MIXED = ModelConfig("x", "x", 40, 32, (Layer((Convolution(3),)), Layer((HEADS,))), 512)
SCAN = SelectiveScan(600, 16, 4)
SMALL = ModelConfig("x", "x", 40, 32, tuple(Layer((part,)) for part in (
    Cells(3, 24, "gru", bias=True), Cells(2, 16, "lstm"), Cells(2, 5, "slstm"), Cells(300, 1),
    replace(SCAN, inner_norm=True), LinearUnit(4, 9),
)), 512)  # fmt: skip
TOKENS = np.random.default_rng(5).integers(0, 40, 200).astype(np.int32)
PAGES = np.arange(12, dtype=np.int32)


def backend_of(config: ModelConfig = CONFIG) -> NativeBackend:
    weights = random_weights(config)
    for name, decay in weights.items():
        if name.endswith(("scan_decay", "unit_decay")):  # Otherwise states would grow.
            weights[name] = Tensor(-np.abs(decay.float32()), decay.shape)
    backend = NativeBackend(config, weights, dtype="f32", threads=2)
    backend.reserve(len(PAGES))
    backend.reserve_states(len(PAGES), len(PAGES))
    return backend


def span(first: int, count: int, base: int, writes: tuple[tuple[int, int], ...] = ()) -> Span:
    at = np.arange(first, first + count, dtype=np.int32)
    states = StatePages(WindowPages(0, PAGES), base, base or -1, writes)
    return Span(
        pages=PAGES, tokens=TOKENS[at], positions=at, slots=at, context=first,
        logits=np.arange(count, dtype=np.int32), states=states,
    )  # fmt: skip


def values(backend: NativeBackend, asked: Span) -> np.ndarray:
    return np.asarray(backend.forward([asked])[0].logits.numpy())


def test_a_state_is_read_once_a_forward_and_written_once_a_page() -> None:
    backend = backend_of()
    values(backend, span(0, 34, 0, ((1, 1), (2, 2))))
    costs = {}
    for rows in (1, 2, 8, 14):
        backend.traffic(True)
        values(backend, span(34, rows, 2))
        costs[rows] = backend.traffic(False)[0].nbytes
    # Rows leave records, and no further row reads the state again.
    assert costs[14] - costs[1] < STATE
    backend.traffic(True)
    values(backend, span(34, 14, 2, ((3, 3),)))
    assert backend.traffic(False)[0].nbytes - costs[14] == STATE
    backend.traffic(True)
    values(backend, span(0, 1, 0))  # The state before the first row is read from nowhere.
    assert costs[1] - backend.traffic(False)[0].nbytes >= STATE


def test_a_small_state_is_read_once_a_forward() -> None:
    """Rows that follow one another hand their states on, and each of them leaves its own."""
    config = ModelConfig("x", "x", 40, 32, (Layer((SCAN,)),), 512)
    backend = backend_of(config)
    values(backend, span(0, 34, 0, ((1, 1), (2, 2))))
    state, costs = 4 * SCAN.kept, {}
    for rows in (1, 2, 8):
        backend.traffic(True)
        values(backend, span(34, rows, 2))
        costs[rows] = backend.traffic(False)[0].nbytes
    for rows in (2, 8):
        left = (costs[rows] - costs[1]) / (rows - 1)
        assert state < left < 1.5 * state
    backend.traffic(True)
    values(backend, span(0, 1, 0))  # The state before the first row is read from nowhere.
    assert state <= costs[1] - backend.traffic(False)[0].nbytes < 1.5 * state


@pytest.mark.parametrize("config", [MIXED, SMALL], ids=["pages", "rows"])
def test_a_page_goes_on_from_its_state(config: ModelConfig) -> None:
    backend = backend_of(config)
    whole = values(backend, span(0, 53, 0, ((3, 3),)))
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(values(backend, span(48, 5, 3)), whole[48:])


@pytest.mark.parametrize("config", [MIXED, SMALL], ids=["pages", "rows"])
def test_every_row_of_a_tree_is_the_row_that_a_chain_gives(config: ModelConfig) -> None:
    """Two branches leave a page at different rows, and both cross the end of the next one."""
    backend, random = backend_of(config), np.random.default_rng(6)
    values(backend, span(0, 45, 0, ((1, 1), (2, 2))))
    parents = [-1, 0, 1, 2, 3, 0, 5, 6, 7, 8, 1, 10]
    count = len(parents)
    seen = np.eye(count, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    depths = seen.sum(1) - 1
    drafts = random.integers(0, 40, count).astype(np.int32)
    tree = Span(
        pages=PAGES, tokens=drafts, positions=(45 + depths).astype(np.int32),
        slots=np.arange(45, 45 + count, dtype=np.int32), context=45, mask=seen,
        logits=np.arange(count, dtype=np.int32),
        states=StatePages(WindowPages(0, PAGES), 2, 2),
    )  # fmt: skip
    found = values(backend, tree)
    assert np.isfinite(found).all()
    for node in range(count):
        path = np.flatnonzero(seen[node])
        for chunk in (1, len(path)):
            alone = backend_of(config)
            text = np.concatenate([TOKENS[:45], drafts[path]])
            at = np.arange(len(text), dtype=np.int32)
            first = len(text) - chunk
            alone.forward([
                Span(pages=PAGES, tokens=text[:first], positions=at[:first], slots=at[:first],
                     context=0, logits=at[:1], states=StatePages(WindowPages(0, PAGES), 0, -1)),
            ])  # fmt: skip
            last = alone.forward([
                Span(pages=PAGES, tokens=text[first:], positions=at[first:], slots=at[first:],
                     context=first, logits=at[:chunk][-1:],
                     states=StatePages(WindowPages(0, PAGES), 0, -1)),
            ])  # fmt: skip
            np.testing.assert_array_equal(last[0].logits.numpy()[0], found[node])


BAD = {
    "records": StatePages(WindowPages(0, np.array([99], np.int32)), 0, -1),
    "base": StatePages(WindowPages(0, PAGES), 9, 1),
    "state": StatePages(WindowPages(0, PAGES), 1, 99),
    "state of page 0": StatePages(WindowPages(0, PAGES), 0, 3),
    "writes": StatePages(WindowPages(0, PAGES), 1, 1, ((9, 2),)),
    "writes to no slot": StatePages(WindowPages(0, PAGES), 1, 1, ((2, 99),)),
    "states": StatePages(WindowPages(0, PAGES), 1, 1, ((2, 1),)),
    "records that are missing": StatePages(WindowPages(2, PAGES), 1, 1),
}


@pytest.mark.parametrize("name", BAD)
def test_states_out_of_range_are_refused(name: str) -> None:
    backend = backend_of()
    values(backend, span(0, 30, 0, ((1, 1),)))
    good = span(30, 5, 1)
    wanted = values(backend, good)
    at = good.positions
    bad = Span(
        pages=PAGES, tokens=TOKENS[at], positions=at, slots=at, context=30,
        logits=np.arange(5, dtype=np.int32), states=BAD[name],
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=name.split()[0]):
        backend.forward([bad])
    np.testing.assert_array_equal(values(backend, good), wanted)


def test_rows_without_one_ancestor_at_each_position_are_refused() -> None:
    backend = backend_of()
    values(backend, span(0, 30, 0, ((1, 1),)))
    at = np.array([30, 32], np.int32)
    mask = np.ones((2, 2), bool)
    for positions, visible in ((at, mask), (at - 1, mask), (np.array([30, 30], np.int32), mask)):
        asked = Span(
            pages=PAGES, tokens=TOKENS[:2], positions=positions, slots=np.full(2, -1, np.int32),
            context=30, mask=visible, logits=np.zeros(1, np.int32),
            states=StatePages(WindowPages(0, PAGES), 1, 1),
        )  # fmt: skip
        with pytest.raises(InvalidInput, match="each position"):
            backend.forward([asked])


def test_a_row_that_leaves_the_path_of_the_row_before_it_is_refused() -> None:
    backend = backend_of()
    values(backend, span(0, 30, 0, ((1, 1),)))
    seen = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], bool)
    asked = Span(
        pages=PAGES, tokens=TOKENS[:4], positions=np.array([30, 30, 31, 32], np.int32),
        slots=np.full(4, -1, np.int32), context=30, mask=seen, logits=np.zeros(1, np.int32),
        states=StatePages(WindowPages(0, PAGES), 1, 1),
    )  # fmt: skip
    backend.forward([asked])
    seen[3, :2] = False, True  # The row before it sees the other one at that position.
    for refuse in (asked.paths, lambda: backend.forward([asked])):
        with pytest.raises(InvalidInput, match="the row at the position before its own sees"):
            refuse()
