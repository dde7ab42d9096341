"""Hold events for a reader that may be slow, within limits on bytes and on time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Limits on how far a reader may fall behind.

    Attributes:
        full: number of bytes at which the buffer counts as full.
        most: the most bytes in the buffer. A last event may exceed this limit.
        patience: the most seconds for which the buffer may stay full.
    """

    full: int = 1 << 18
    most: int = 1 << 22
    patience: float = 10.0


class Buffer(Generic[T]):
    """A queue of events for one writer, who never waits, and one reader, who may be slow."""

    def __init__(
        self, bounds: Bounds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds, self._clock = bounds or Bounds(), clock
        self._events: deque[tuple[T, int]] = deque()
        self._held = 0
        self._full_since: float | None = None
        self._arrived = asyncio.Event()

    def put(self, event: T, size: int) -> bool:
        """Add an event of ``size`` bytes. Return False if the reader has been too slow."""
        before = self._held
        self._events.append((event, size))
        self._held += size
        self._arrived.set()
        if self._held < self._bounds.full:
            return True
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        late = now - self._full_since > self._bounds.patience
        # A single event may be larger than ``most``. Then no reader could have been fast enough.
        return not late and before < self._bounds.most

    def replace(self, event: T) -> None:
        """Drop all unread events, and make ``event`` the last event that the reader gets."""
        self._events.clear()
        self._held = 0
        self._events.append((event, 0))
        self._arrived.set()

    async def get(self) -> T:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event, size = self._events.popleft()
        self._held -= size
        if self._held < self._bounds.full:
            self._full_since = None
        return event
