"""Which page of K/V memory belongs to whom: reference counts and the prefix index."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE
from paradecode.core.errors import CapacityError


class PagePool:
    """Pages of one model.

    Every page is free, held (by one or more sequences), or idle: held by nobody but published under
    a key, so that a later request with the same prefix can take it. Idle pages are recycled, oldest
    first, when no page is free.

    Args:
        count: number of pages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        return self.count - self.available

    @property
    def idle(self) -> int:
        """Pages that only the prefix index keeps."""
        return len(self._idle)

    def take(self) -> int:
        """A page of one's own. Raises CapacityError when all pages are held."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        else:
            raise CapacityError(f"all {self.count} K/V pages are in use; raise kv_tokens")
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """One more holder of a held or idle page."""
        self._idle.pop(page, None)
        self._holders[page] += 1
        return page

    def release(self, page: int) -> None:
        """One holder fewer."""
        if self._holders[page] <= 0:
            raise AssertionError(f"page {page} released more often than taken")
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def writable(self, page: int) -> bool:
        """True if a single sequence holds the page and no later request may look at it."""
        return self._holders[page] == 1 and page not in self._key_of

    def publish(self, page: int, key: bytes) -> None:
        """Offer a full page to later requests; the first page of a key wins."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def find(self, key: bytes) -> int | None:
        return self._page_of.get(key)

    def check(self, held_by: list[list[int]]) -> None:
        """Assert that the books are right, given the page tables of all live sequences."""
        counts = [0] * self.count
        for table in held_by:
            for page in table:
                counts[page] += 1
        assert counts == self._holders, "page holders differ from the live page tables"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & idle, "a page is free and idle"
        for page, holders in enumerate(self._holders):
            assert (holders == 0) == (page in free or page in idle), f"page {page} leaked"
        assert all(self._page_of[key] == page for page, key in self._key_of.items())
        assert idle <= set(self._key_of), "an idle page has no key"


def first_key(salt: str, model: str) -> bytes:
    """The key before the first page: tenants with different salts never share."""
    return hashlib.blake2b(f"{len(salt)}:{salt}{model}".encode(), digest_size=16).digest()


def next_key(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
    """The key of a page that holds ``tokens`` [PAGE] after everything ``previous`` stands for."""
    assert len(tokens) == PAGE
    return hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest()
