"""The thread that reads: lines become messages, and messages are prepared, beside the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import BinaryIO, Generic, TypeVar

from paradecode.serve.lines import MAX_LINE
from paradecode.serve.worker.slow import SlowMessage, Turns

T = TypeVar("T")

AHEAD = 64
"""Messages that are read ahead of the engine; the pipe holds back what comes behind them."""

LATER = 64
"""Messages of one key and kind that take long and wait; more are refused."""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long only the start, which no reader accepts."""
    while line := stream.readline(MAX_LINE + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE + 1)


class Inbox(Generic[T]):
    """Messages in order of arrival, then None for the end of the stream.

    Args:
        stream: where lines come from.
        read: turns a line into a message; must not raise. A :class:`SlowMessage` comes at once, and
            what it makes when that is ready.
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
        """What has arrived; with ``wait``, at least one message."""
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
