"""Write a worker's events as lines. An event that does not fit into a line fails alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from io import RawIOBase

from paradecode.core.errors import InvalidInput
from paradecode.serve.lines import MAX_LINE, LineTooLong, encode
from paradecode.serve.wire import WORKER, Event, Failure

_log = logging.getLogger(__name__)


class EventWriter:
    """Writes events to a pipe. Several threads may use it, and lines are never mixed.

    Args:
        pipe: a pipe without a buffer.
    """

    def __init__(self, pipe: RawIOBase) -> None:
        self._pipe, self._turn = pipe, threading.Lock()

    def __call__(self, events: Iterable[Event]) -> set[str]:
        """Write events, and return the ids of requests with an event that could not be written.

        These requests have failed, and nothing more is written about them.
        """
        lines: list[bytes] = []
        failed: set[str] = set()
        for event in events:
            id = getattr(event, "id", WORKER)
            if id in failed:
                continue
            try:
                lines.append(encode(event))
            except InvalidInput as error:
                lines.append(encode(_failure(id, error)))
                failed.add(id)
        data = memoryview(b"".join(lines))
        with self._turn:
            while len(data):
                data = data[self._pipe.write(data) :]
        return failed


def _failure(id: str, error: InvalidInput) -> Failure:
    """Return the failure that is sent instead of an event that cannot be written."""
    if isinstance(error, LineTooLong):
        fix = f"ask for less at a time: it may have less than {MAX_LINE}"
        message = f"a part of the answer has {error.value}; {fix}"
        return Failure(id=id, status=400, message=message)
    _log.error("request %s failed: %s", id, error)
    return Failure(id=id, status=500, message="the model's answer has numbers that are not finite")
