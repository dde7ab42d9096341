"""The engine tells which published pages came and went."""

from __future__ import annotations

import random

from paradecode.engine.kv import CHANGES, PagePool


def test_changes_lead_to_what_is_published() -> None:
    """Whoever follows them, however seldom, knows what a whole look shows."""
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
