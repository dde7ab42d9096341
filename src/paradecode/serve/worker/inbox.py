"""The thread that reads: it turns lines into messages and prepares them while the engine steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import BinaryIO, Generic, TypeVar

from paradecode.serve.lines import MAX_LINE
from paradecode.serve.worker.slow import SlowMessage, Turns

T = TypeVar("T")

AHEAD = 64
"""Messages that are read before the engine asks for them; the pipe holds back the following
ones."""

LATER = 64
"""Slow messages of one key and kind that may wait; more are refused."""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; a line that is too long is cut, so that no reader accepts it."""
    while line := stream.readline(MAX_LINE + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE + 1)


class Inbox(Generic[T]):
    """Messages in order of arrival, then None for the end of the stream.

    Args:
        stream: the source of the lines.
        read: turns a line into a message; must not raise. A :class:`SlowMessage` comes at once, and
            the message that it makes comes when it is ready.
    """

    def __init__(self, stream: BinaryIO, read: Callable[[bytes], T | SlowMessage[T]]) -> None:
        self._stream, self._read = stream, read
        self._queue: SimpleQueue[tuple[T | SlowMessage[T] | None, bool]] = SimpleQueue()
        self._turns: dict[str, Turns[T]] = {}
        self._room = threading.Semaphore(AHEAD)
        threading.Thread(target=self._follow, name="inbox", daemon=True).start()

    def put(self, message: T) -> None:
        """Add a message from this process; a signal handler may call this."""
        self._queue.put((message, False))

    def take(self, wait: bool) -> Iterator[T | SlowMessage[T] | None]:
        """The messages that have arrived; with ``wait``, at least one."""
        while True:
            try:
                message, counted = self._queue.get(block=wait)
            except Empty:
                return
            wait = False
            if counted:
                self._room.release()
            yield message

    def _follow(self) -> None:
        try:
            for line in lines(self._stream):
                self._room.acquire()
                message = self._read(line)
                self._queue.put((message, True))
                if isinstance(message, SlowMessage):
                    if message.kind not in self._turns:
                        self._turns[message.kind] = Turns(self.put, LATER, message.kind)
                    self._turns[message.kind].add(message)
        finally:  # However it ends: the engine must not wait for what cannot come.
            self._queue.put((None, False))
