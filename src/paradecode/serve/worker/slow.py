"""Prepare slow messages in other threads, one for each kind of work, where keys take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_BYTES = 1 << 27


@dataclass(frozen=True)
class SlowMessage(Generic[T]):
    """A message that takes long to prepare.

    Attributes:
        id: id of the message's request.
        kind: why the message takes long. Messages of different kinds do not wait for each other.
        key: name of the client's key. Keys take turns.
        size: number of bytes that count while the message waits; 0 if it must not be refused.
        work: makes the prepared message that takes its place; must not raise.
        instead: makes the message that takes its place if too much waits already.
    """

    id: str
    kind: str
    key: str
    size: int
    work: Callable[[], T]
    instead: Callable[[], T]


class Turns(Generic[T]):
    """Prepares the added messages in a thread, one key after the other, and delivers them.

    Args:
        put: takes a prepared message; called from another thread.
        most: the most waiting messages of one key. All keys together may have :data:`MOST_BYTES`
            bytes.
        name: name of the thread.
    """

    def __init__(self, put: Callable[[T], None], most: int, name: str) -> None:
        self._put, self._most, self._bytes = put, most, 0
        self._waiting: dict[str, deque[SlowMessage[T]]] = {}
        self._some = threading.Condition()
        threading.Thread(target=self._follow, name=name, daemon=True).start()

    def add(self, message: SlowMessage[T]) -> None:
        with self._some:
            queue = self._waiting.get(message.key, deque())
            full = len(queue) >= self._most or self._bytes + message.size > MOST_BYTES
            if not full:
                self._bytes += message.size
                self._waiting[message.key] = queue
                queue.append(message)
                self._some.notify()
        if full:
            self._put(message.instead())

    def _follow(self) -> None:
        while True:
            self._put(self._next().work())

    def _next(self) -> SlowMessage[T]:
        with self._some:
            self._some.wait_for(lambda: self._waiting)
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            message = queue.popleft()
            self._bytes -= message.size
            if queue:
                self._waiting[key] = queue  # This key is the last one now.
            return message
