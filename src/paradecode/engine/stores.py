"""Stores of data that methods have learned from each tenant's requests, with a limit on bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

Place = tuple[str, str]
"""Owner and salt of a tenant."""
ALL, SAVING = 0, 1
"""The stores that may be forgotten: all stores, or only stores that save work."""
SMALL = 4096
"""Bytes that count for a store without an ``nbytes``, and for each salt."""


class LearnedStores:
    """The shared stores of every salt.

    If all stores together are too large, the owner with the most bytes loses stores of the salt
    that was unused longest. Stores that only save work go first, from all owners, and then stores
    of learned data. The salt in use loses its oldest stores one by one, but never its newest.

    Sizes of unused salts are remembered, so that thousands of them cost a request little.

    Args:
        most: largest size of all stores, in bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._stores: OrderedDict[Place, dict[str, Any]] = OrderedDict()
        self._users = Counter[Place]()
        self._sizes: dict[Place, tuple[int, int]] = {}  # ALL, and SAVING of them
        self._owned = Counter[str](), Counter[str]()
        self._total = 0

    def of(self, salt: str, owner: str) -> dict[str, Any]:
        """Return the stores of a salt. The caller calls :meth:`left` at the end of their use."""
        place = owner, salt
        stores = self._stores.setdefault(place, {})
        self._stores.move_to_end(place)
        self._users[place] += 1
        for used in self._users:
            self._book(used)
        self._shrink(place)
        return stores

    def left(self, salt: str, owner: str) -> None:
        """Record that a caller of :meth:`of` adds nothing more to these stores."""
        place = owner, salt
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._book(place)

    def _book(self, place: Place, gone: bool = False) -> None:
        """Record the size of a salt's stores, which may have changed."""
        if place not in self._stores:  # It was forgotten to free memory.
            return
        before = self._sizes.pop(place, (0, 0))
        now = (0, 0) if gone else _sizes(self._stores[place])
        if gone:
            del self._stores[place]
        else:
            self._sizes[place] = now
        self._total += now[ALL] - before[ALL]
        for kind, owned in enumerate(self._owned):
            owned[place[0]] += now[kind] - before[kind]
            if not owned[place[0]]:
                del owned[place[0]]

    def _shrink(self, asking: Place) -> None:
        for kind in (SAVING, ALL):
            owned, spared = self._owned[kind], 0
            while self._total > self.most and (most := max(owned.values(), default=0)) > 0:
                place = next(
                    each for each in self._stores
                    if owned[each[0]] == most and self._sizes[each][kind]
                    and not (spared and each == asking)
                )  # fmt: skip
                if place != asking:
                    self._forget(place, kind)
                elif not self._forget_oldest(place, kind):
                    spared = self._sizes[place][kind]  # It stays; others lose stores.
                    owned[place[0]] -= spared
            owned[asking[0]] += spared

    def _forget(self, place: Place, kind: int) -> None:
        stores = self._stores[place]
        for name in [name for name, store in stores.items() if _saves_work(store)]:
            del stores[name]
        self._book(place, gone=kind == ALL)

    def _forget_oldest(self, place: Place, kind: int) -> bool:
        """Forget the oldest store of this kind, except the newest; return whether there was one."""
        stores = self._stores[place]
        names = [name for name, store in stores.items() if _saves_work(store) or kind == ALL]
        if len(names) > 1:
            del stores[names[0]]
            self._book(place)
        return len(names) > 1


def _sizes(stores: Mapping[str, Any]) -> tuple[int, int]:
    every = SMALL + sum(getattr(store, "nbytes", SMALL) for store in stores.values())
    return every, sum(store.nbytes for store in stores.values() if _saves_work(store))


def _saves_work(store: Any) -> bool:
    """Return whether a store holds only results that requests can compute again."""
    return getattr(store, "saves_work", False)
