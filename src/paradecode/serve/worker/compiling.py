"""What takes long to prepare is prepared apart: one thread, in which the keys take turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Compiling(Generic[T]):
    """A request whose constraint must be compiled first.

    Attributes:
        key: whose turn it takes.
        work: makes the message that comes in its place; must not raise.
        instead: the same, where too much of that key waits already.
    """

    def __init__(self, id: str, key: str, work: Callable[[], T], instead: Callable[[], T]) -> None:
        self.id, self.key, self.work, self.instead = id, key, work, instead


class Turns(Generic[T]):
    """Prepares what is added, one key after the other, and puts it into the inbox.

    Args:
        put: takes what is ready; called from another thread.
        most: what of one key may wait.
    """

    def __init__(self, put: Callable[[T], None], most: int) -> None:
        self._put, self._most = put, most
        self._waiting: dict[str, deque[Compiling[T]]] = {}
        self._some = threading.Condition()
        threading.Thread(target=self._follow, name="constraints", daemon=True).start()

    def add(self, later: Compiling[T]) -> None:
        with self._some:
            queue = self._waiting.setdefault(later.key, deque())
            full = len(queue) >= self._most
            if not full:
                queue.append(later)
                self._some.notify()
        if full:
            self._put(later.instead())

    def _follow(self) -> None:
        while True:
            self._put(self._next().work())

    def _next(self) -> Compiling[T]:
        with self._some:
            self._some.wait_for(lambda: self._waiting)
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            later = queue.popleft()
            if queue:
                self._waiting[key] = queue  # Behind the others.
            return later
