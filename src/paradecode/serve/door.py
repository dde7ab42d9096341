"""State that all connections of a server share: how many there are, and who is served next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Protocol

from paradecode.serve import heads
from paradecode.serve.security import digest

TURN = 8
"""The number of connections accepted, and of requests begun, in one turn of the event loop.

Other work of the event loop runs between two turns, so a higher number delays it more.
"""

RANKS = 3
KEYED = RANKS - 1


class Visitor(Protocol):
    """A connection.

    Attributes:
        rank: how well the client is known: :data:`KEYED` after a valid key, 1 if it was let in
            without a key, 0 before its first answer.
        owner: digest of the key that the client has shown, or b"" without a key; it changes only
            while the server works on a request.
    """

    rank: int
    owner: bytes

    def read(self) -> None:
        """Begin the request that has arrived."""

    def leave(self) -> None:
        """Close the connection at once."""


class Door:
    """Decides which connections may enter, and whose request begins next.

    A full server closes one connection for a new one. It can close a connection that waits for its
    client: for a request, for a body, or for the client to read. The owner with the most such
    connections loses the one that has waited longest. All clients without a key count as one owner,
    so a crowd closes only its own connections. A waiting newcomer thus keeps its place longest. In
    each turn one request of each rank begins, and then requests of the highest rank, so a crowd of
    one rank delays only its own requests.

    Args:
        most: the most connections at the same time.
        known: digests of the valid keys.
    """

    def __init__(self, most: int, known: Collection[bytes] = ()) -> None:
        self._most, self._known, self._inside = most, known, set[Visitor]()
        self._waiting: dict[bytes, dict[Visitor, None]] = {}
        """Owner -> its connections that wait for their client, the longest wait first."""
        self._queues = tuple(deque[Visitor]() for _ in range(RANKS))
        self._left, self._turning = TURN, False

    @property
    def full(self) -> bool:
        """True if the server works on as many connections as it may have."""
        return len(self._inside) >= self._most and not self._waiting

    def enter(self, visitor: Visitor) -> bool:
        """Let a connection in. Return False if the server is full and works on all connections."""
        if len(self._inside) >= self._most:
            idle = self.longest_idle()
            if idle is None:
                return False
            self.leave(idle)
            idle.leave()
        self._inside.add(visitor)
        self.wait(visitor)
        return True

    def longest_idle(self) -> Visitor | None:
        """Return who leaves for the next connection, if no place is free; otherwise None."""
        if len(self._inside) < self._most:
            return None
        most = max(self._waiting.values(), key=len, default={})
        return next(iter(most), None)

    def leave(self, visitor: Visitor) -> None:
        self.work(visitor)
        self._inside.discard(visitor)

    def replace(self, old: Visitor, new: Visitor) -> None:
        """Give a visitor's place to another one, on whose request the server works."""
        self.leave(old)
        self._inside.add(new)

    def wait(self, visitor: Visitor) -> None:
        """Record that a connection waits for its client from now on."""
        if visitor in self._inside:
            self.work(visitor)
            self._waiting.setdefault(visitor.owner, {})[visitor] = None

    def work(self, visitor: Visitor) -> None:
        """Record that a connection waits for the server, and not for its client."""
        group = self._waiting.get(visitor.owner, {})
        group.pop(visitor, None)
        if not group:
            self._waiting.pop(visitor.owner, None)

    def recognise(self, visitor: Visitor, head: bytes) -> None:
        """Raise the rank of a visitor whose head has a valid key."""
        key = heads.shown_key(head)
        if key and (shown := digest(key)) in self._known:
            visitor.rank, visitor.owner = KEYED, shown

    def turn(self, visitor: Visitor) -> bool:
        """Return whether the visitor may begin now. If not, its ``read`` is called later."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._next)
        if not self._left:
            self._queues[visitor.rank].append(visitor)
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        """Begin a turn with waiting requests: one of each rank, then those of the highest rank."""
        self._left = TURN
        for most in (1, TURN):
            for queue in reversed(self._queues):
                for _ in range(min(most, len(queue), self._left)):
                    self._left -= 1
                    queue.popleft().read()
        self._turning = self._left < TURN
        if self._turning:
            asyncio.get_running_loop().call_soon(self._next)
