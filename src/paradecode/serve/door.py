"""What the connections of a server share: their number, and whose request is read next."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

TURN = 8
"""Requests that are begun in one turn of the event loop; what others wait for is between turns."""

RANKS = 3
KEYED = RANKS - 1


class Visitor(Protocol):
    """A connection.

    Attributes:
        rank: how well it is known: :data:`KEYED` if it has shown a valid key, 1 if it was let in
            without one, 0 before its first answer.
        owner: whose key it has shown, b"" without one; it changes only while the server works.
    """

    rank: int
    owner: bytes

    def read(self) -> None:
        """Begin the request that has arrived."""

    def leave(self) -> None:
        """Close at once."""


class Door:
    """Lets connections in, and their requests one after another.

    A full server closes a connection in favour of a new one, if it waits for its client: for a
    request, for a body, or for somebody to read the answer. It is one of the owner who has most of
    these, and all without a key are one owner: a crowd closes only its own. Of these the one that
    has waited longest goes, so that a newcomer has the time of many others to ask. Of the requests
    that have arrived, those of the best known are begun first, beside one of each other rank in a
    turn: a crowd of one rank delays only its own.

    Args:
        most: connections at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, set[Visitor]()
        self._waiting: dict[bytes, dict[Visitor, None]] = {}
        """Owner -> its connections that wait for their client, in the order of their beginning."""
        self._queues = tuple(deque[Visitor]() for _ in range(RANKS))
        self._left, self._turning = TURN, False

    def enter(self, visitor: Visitor) -> bool:
        """Let a connection in; returns False if all others are at work."""
        if len(self._inside) >= self._most:
            most = max(self._waiting.values(), key=len, default={})
            idle = next(iter(most), None)
            if idle is None:
                return False
            self.leave(idle)
            idle.leave()
        self._inside.add(visitor)
        self.wait(visitor)
        return True

    def leave(self, visitor: Visitor) -> None:
        self.work(visitor)
        self._inside.discard(visitor)

    def wait(self, visitor: Visitor) -> None:
        """Note that a connection waits for its client from now on."""
        if visitor in self._inside:
            self.work(visitor)
            self._waiting.setdefault(visitor.owner, {})[visitor] = None

    def work(self, visitor: Visitor) -> None:
        """Note that a connection waits for the server."""
        group = self._waiting.get(visitor.owner, {})
        group.pop(visitor, None)
        if not group:
            self._waiting.pop(visitor.owner, None)

    def turn(self, visitor: Visitor) -> bool:
        """Whether the visitor may begin its request now; if not, its ``read`` is called later."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._next)
        if not self._left:
            self._queues[visitor.rank].append(visitor)
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        """Begin a turn with the requests that wait: one of each rank, then the best known."""
        self._left = TURN
        for most in (1, TURN):
            for queue in reversed(self._queues):
                for _ in range(min(most, len(queue), self._left)):
                    self._left -= 1
                    queue.popleft().read()
        self._turning = self._left < TURN
        if self._turning:
            asyncio.get_running_loop().call_soon(self._next)
