"""Read lines in a thread, turn them into messages, and prepare them while the engine steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import BinaryIO, Generic, TypeVar

from paradecode.serve.lines import MAX_LINE
from paradecode.serve.worker.slow import SlowMessage, Turns

T = TypeVar("T")

AHEAD = 64
"""The number of messages that are read ahead of the engine. Further messages stay in the pipe."""

LATER = 64
"""The most slow messages of one key and kind that may wait. Further ones are refused."""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream. A line that is too long is cut, so that no reader accepts it."""
    while line := stream.readline(MAX_LINE + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE + 1)


class Inbox(Generic[T]):
    """The messages in the order of arrival, and then None at the end of the stream.

    Args:
        stream: the source of the lines.
        read: turns a line into a message; must not raise. A :class:`SlowMessage` is delivered at
            once, and the message that it makes is delivered when it is ready. None is a line that
            needs nothing more.
    """

    def __init__(
        self, stream: BinaryIO, read: Callable[[bytes], T | SlowMessage[T] | None]
    ) -> None:
        self._stream, self._read = stream, read
        self._queue: SimpleQueue[tuple[T | SlowMessage[T] | None, bool]] = SimpleQueue()
        self._turns: dict[str, Turns[T]] = {}
        self._room = threading.Semaphore(AHEAD)
        threading.Thread(target=self._follow, name="inbox", daemon=True).start()

    def put(self, message: T) -> None:
        """Add a message from this process. A signal handler may call this."""
        self._queue.put((message, False))

    def take(self, wait: bool) -> Iterator[T | SlowMessage[T] | None]:
        """Yield the messages that have arrived. With ``wait``, wait for at least one."""
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
                if message is None:  # Any number of them may come during one step of the engine.
                    self._room.release()
                    continue
                self._queue.put((message, True))
                if isinstance(message, SlowMessage):
                    if message.kind not in self._turns:
                        self._turns[message.kind] = Turns(self.put, LATER, message.kind)
                    self._turns[message.kind].add(message)
        finally:  # In any case, or the engine would wait for ever.
            self._queue.put((None, False))
