"""The page pools of a model, and a sequence's page tables.

A page holds the keys and values of a fixed number of positions. Layers with the same sliding window
have a pool of their own, and a table of their own in each sequence: a page that no row attends to
any more is freed for these layers alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE
from paradecode.core.errors import CapacityError, DecoderError

CHANGES = 8192
"""Number of remembered changes of a pool's published pages.

A reader that has missed more reads all keys; a higher number uses more memory.
"""
KEPT = 8
"""The pool of a sliding window keeps at most 1 / KEPT of its pages for later requests.

It always keeps at least two windows. A lower value uses more memory, and finds more prefixes again.
"""


class PagePool:
    """The K/V pages of one model, for its layers with one sliding window.

    Every page is free, held (by one or more sequences), or idle. An idle page has no holder but is
    published under a key, so that a later request with the same prefix can reuse it. If no page is
    free, the oldest idle page is recycled.

    Args:
        count: number of pages.
        windows: the sliding windows of the model's layers, see
            :func:`paradecode.backends.interface.windows_of`. This pool is for the first one.
        most_idle: largest number of idle pages. None means any number, or for a sliding window the
            number that :data:`KEPT` gives.

    Attributes:
        window: number of positions that a row attends to; 0 means all.
        kinds: this pool, and a pool for each further window.
        changes: number of times that a key was published or removed.
    """

    def __init__(
        self, count: int, windows: Sequence[int] = (0,), most_idle: int | None = None
    ) -> None:
        self.count, self.window = count, windows[0]
        self.kinds = [self, *(PagePool(count, (window,)) for window in windows[1:])]
        self._most_idle = count if most_idle is None else most_idle
        if self.window:
            self._most_idle = max(count // KEPT, 2 * (self.window // PAGE + 1))
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._changes: deque[bytes] = deque(maxlen=CHANGES)
        self.changes = 0

    @property
    def available(self) -> int:
        """The number of pages that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        return self.count - self.available

    @property
    def idle(self) -> int:
        """The number of pages that only the prefix cache uses."""
        return len(self._idle)

    def take(self) -> int:
        """Take a page for one holder; raise CapacityError if all pages are held."""
        if not self._free:
            if not self._idle:
                raise CapacityError(f"all {self.count} K/V pages are in use; raise kv_tokens")
            self._recycle()
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """Add a holder to a held or idle page, and return the page."""
        self._idle.pop(page, None)
        self._holders[page] += 1
        return page

    def release(self, page: int) -> None:
        """Remove one holder of the page."""
        if self._holders[page] <= 0:
            raise AssertionError(f"page {page} released more often than taken")
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._key_of:
                self._idle[page] = None
                if len(self._idle) > self._most_idle:
                    self._recycle()
            else:
                self._free.append(page)

    def _recycle(self) -> None:
        """Free the oldest idle page."""
        page, _ = self._idle.popitem(last=False)
        key = self._key_of.pop(page)
        del self._page_of[key]
        self._note(key)
        self._free.append(page)

    def writable(self, page: int) -> bool:
        """Return whether only one sequence holds the page and no later request can find it."""
        return self._holders[page] == 1 and page not in self._key_of

    def publish(self, page: int, key: bytes) -> None:
        """Offer a full page to later requests; the first page of a key stays."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key
            self._note(key)

    def find(self, key: bytes) -> int | None:
        return self._page_of.get(key)

    def changed(self, since: int | None) -> tuple[bool, list[bytes], list[bytes]]:
        """Return how the published pages have changed after the first ``since`` changes.

        Returns:
            True if the lists have all published keys, because ``since`` is None or too long ago;
                the keys that are published; and the keys that are no longer published.
        """
        old = self.changes - len(self._changes)
        if since is None or not old <= since <= self.changes:
            return True, list(self._page_of), []
        keys = dict.fromkeys(islice(self._changes, since - old, None))
        stored = [key for key in keys if key in self._page_of]
        return False, stored, [key for key in keys if key not in self._page_of]

    def _note(self, key: bytes) -> None:
        self._changes.append(key)
        self.changes += 1

    def check(self, held_by: list[list[int]]) -> None:
        """Assert that this pool agrees with the page tables of all live sequences."""
        counts = [0] * self.count
        for page in chain.from_iterable(held_by):
            counts[page] += 1
        assert counts == self._holders, "page holders differ from the live page tables"
        held, free, idle = set(chain.from_iterable(held_by)), set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert len(held) + len(free) + len(idle) == self.count, "a page leaked"
        assert len(held | free | idle) == self.count, "a page is held, free or idle at a time"
        pages = list(map(self._page_of.get, self._key_of.values()))
        assert pages == list(self._key_of), "a page is found by another page's key"
        assert idle <= set(self._key_of), "an idle page has no key"


def reach(page: int, window: int) -> int:
    """Return the first page that a row at the start of ``page`` attends to (window 0: page 0)."""
    return max(0, page * PAGE - window + 1) // PAGE if window else 0


class PageTable:
    """One sequence's pages for the layers with one sliding window.

    Attributes:
        first: index of the first page that the sequence still has; earlier pages were given back.
        pages: the pages from ``first`` on.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool, self.first = pool, 0
        self.pages: list[int] = []

    def own(self, touched: list[int], copy: Callable[[int, int], None]) -> None:
        """Take or copy pages so that no other table shares the pages with the indices ``touched``.

        Args:
            touched: ascending.
            copy: copies a page to another one.

        Raises:
            DecoderError: if a page was given back.
            CapacityError: if no page is left.
        """
        if touched and touched[0] < self.first:
            raise DecoderError(
                f"rows cannot be stored at {touched[0] * PAGE}: a sliding window of "
                f"{self.pool.window} has passed, and keeps rows from {self.first * PAGE} on"
            )
        while touched and self.first + len(self.pages) <= touched[-1]:
            self.pages.append(self.pool.take())
        for index in touched:
            page = self.pages[index - self.first]
            if not self.pool.writable(page):
                fresh = self.pool.take()
                copy(page, fresh)
                self.pool.release(page)
                self.pages[index - self.first] = fresh

    def publish(self, index: int, key: bytes) -> None:
        """Offer the page with this index to later requests, unless it was given back."""
        if index >= self.first:
            self.pool.publish(self.pages[index - self.first], key)

    def share(self, other: PageTable) -> None:
        """Become a table of the same pages as ``other``."""
        self.first, self.pages = other.first, [self.pool.share(page) for page in other.pages]

    def forget(self, first: int) -> None:
        """Give back the pages before ``first``."""
        while self.first < first and self.pages:
            self.pool.release(self.pages.pop(0))
            self.first += 1

    def release(self) -> None:
        """Give back all pages."""
        for page in self.pages:
            self.pool.release(page)
        self.pages.clear()
        self.first = 0

    def physical(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of the pool, page * PAGE + row, for slots that the sequence has."""
        return np.array(self.pages, np.int64)[slots // PAGE - self.first] * PAGE + slots % PAGE
