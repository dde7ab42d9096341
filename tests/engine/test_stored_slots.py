"""Stored slots equal those of a plain table, and reported changes lead to the published pages."""

import random

import numpy as np
import pytest

from paradecode.core.layers import Half, Layers
from paradecode.engine.pages import CHANGES, PagePool
from paradecode.engine.slots import StoredSlots

LAYERS, CAPACITY = 4, 24
SOME: list[Layers | None] = [
    None, (0, 1, 2, 3), (0,), (2, 1), (), (Half(3, "attention"), Half(3, "mlp")), (Half(0, "mlp"),),
]  # fmt: skip


def numbers(layers: Layers | None) -> set[int]:
    if layers is None:
        return set(range(LAYERS))
    mlp = {layer for layer in layers if isinstance(layer, Half) and layer.part == "mlp"}
    return {one.layer if isinstance(one, Half) else one for one in layers if one not in mlp}


@pytest.mark.parametrize("seed", range(24))
def test_random_books(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = int(random.integers(CAPACITY // 2))
    books = StoredSlots(LAYERS, CAPACITY, start)
    held = {(layer, slot) for layer in range(LAYERS) for slot in range(start)}
    usual = SOME[:2] if seed % 3 == 0 else SOME  # In a third of them no two layers differ.
    for _ in range(60):
        layers = usual[random.integers(len(usual))]
        act, at = random.integers(4), int(random.integers(CAPACITY))
        if act == 0:
            stop = min(at + int(random.integers(6)), CAPACITY)
            books.clear(at, stop)
            held = {(layer, slot) for layer, slot in held if not at <= slot < stop}
        elif act == 1:
            slots = random.choice(CAPACITY, random.integers(5), replace=False)
            books.fill(slots, layers)
            held |= {(layer, slot) for layer in numbers(layers) for slot in slots.tolist()}
        else:  # Rows in order, as most are.
            slots = np.arange(at, min(at + 9, CAPACITY))
            books.fill(slots, layers)
            held |= {(layer, slot) for layer in numbers(layers) for slot in slots.tolist()}
        assert books.end >= max((slot for _, slot in held), default=-1) + 1
        for asked in SOME:
            count = int(random.integers(CAPACITY + 1))
            lead = {(layer, slot) for layer in numbers(asked) for slot in range(count)}
            assert books.leads(count, asked) == (lead <= held)
            slots = random.integers(CAPACITY, size=random.integers(1, 4))
            wanted = {(layer, slot) for layer in numbers(asked) for slot in slots.tolist()}
            assert books.holds(slots, asked) == (wanted <= held)
    assert not books.holds(np.array([0, CAPACITY]))
    assert not books.holds(np.array([-1]))


def test_the_end_is_that_of_the_last_row_behind_the_cleared_ones() -> None:
    books = StoredSlots(LAYERS, CAPACITY, 5)
    books.fill(np.arange(5, 9), (1,))
    books.clear(5, 8)
    assert books.end == 9
    books.clear(5, 9)
    assert books.end == 5


def test_while_layers_are_alike_the_books_have_one_row() -> None:
    books = StoredSlots(LAYERS, CAPACITY, 5)
    books.fill(np.arange(8, 12))
    books.fill(np.arange(12, 14), (3, 2, 1, 0))
    assert not books.leads(9)
    assert not books.holds(np.arange(7, 9), (1,))
    assert books.holds(np.arange(8, 14), (1,))
    assert books._held.shape == (1, CAPACITY)


def test_changes_lead_to_what_is_published() -> None:
    """A reader that follows the changes, however rarely, knows the same keys as a full listing."""
    pool, chance = PagePool(8), random.Random(1)
    known: set[bytes] = set()
    since: int | None = None
    whole_looks = 0
    for number in range(3 * CHANGES):
        page = pool.take()
        pool.publish(page, bytes([chance.randrange(40)]))
        pool.release(page)
        if chance.random() < (0.05 if number < CHANGES else 0.0002):
            whole, stored, removed = pool.changed(since)
            whole_looks += whole
            known = set(stored) if whole else (known | set(stored)) - set(removed)
            since = pool.changes
            assert known == set(pool.changed(None)[1])
    assert whole_looks >= 1
    assert pool.changed(pool.changes) == (False, [], [])
    assert pool.changed(0)[0] == (pool.changes > CHANGES)
    assert pool.changed(pool.changes + 1)[0]  # Of another worker.
