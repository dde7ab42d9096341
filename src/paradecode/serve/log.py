"""Write structured logs: one JSON object in each line, with counts and times.

Prompts and outputs are never logged.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, TextIO

from paradecode.serve.wire import Done

if TYPE_CHECKING:  # Workers use this file without HTTP's packages.
    from paradecode.serve.errors import ApiError

MAX_NAME = 256
"""The most characters that are kept of a text that a client can choose."""

MAX_OUTPUTS = 64
"""The most outputs of one request that are listed in its line. Further outputs are only counted."""

STRANGERS = 10
"""The most lines a second for requests that anybody can send. Further requests are counted."""

WAITING = 1024
"""The most lines that may wait for a slow reader of the log."""

MOST = 16
"""The most ignored fields of a request that are listed in its line."""

FIELD = re.compile(r"[a-z0-9_.\[\]]{1,80}", re.IGNORECASE)
"""Form of the server's own field names. Any other name may be a text that the client chose."""


@dataclass
class Note:
    """The contents of a request's log line and spans. Routes fill it in.

    It has no prompt, no output and no error message, because an error message may quote the
    request.

    Attributes:
        ended: when each output of ``done`` ended, in nanoseconds of the clock.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str | None = None
    done: list[Done] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    error: ApiError | None = None


def places(error: BaseException) -> list[str]:
    """Return the places in the code where an error was raised, as ``file:line``.

    The text of the error is left out, because it may quote a request.
    """
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]


class PlacesOnly(logging.Formatter):
    """A log formatter that shows an exception's type and where it was raised, but not its text."""

    def formatException(self, ei: Any) -> str:
        return f"{ei[0].__name__} at {', '.join(places(ei[1]))}"


class Log:
    """Writes log lines to a stream (standard error by default). Several threads may use it.

    A thread of its own writes the lines, so a reader who is slow, or stops, delays nobody. Lines
    that find no room are dropped, and the next line says how many were. If the stream cannot be
    written, lines are lost.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._since, self._strangers, self._lost = -math.inf, 0, 0
        self._lines: Queue[tuple[TextIO, str] | None] = Queue(WAITING)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def write(self, event: str, **fields: Any) -> None:
        """Write one line with the time, the event, and the fields that are not None."""
        line = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
        fields["lost"] = self._lost or None
        line |= {"event": event, **{k: v for k, v in fields.items() if v is not None}}
        # ASCII without newlines: whatever a client sends, a line stays one line.
        text = json.dumps(line, default=str, separators=(",", ":"))
        try:
            self._lines.put_nowait((self._stream or sys.stderr, text + "\n"))
            self._lost = 0
        except Full:
            self._lost += 1

    def close(self) -> None:
        """Write the waiting lines, if that is possible within a second."""
        with suppress(Full):
            self._lines.put(None, timeout=1)
            self._thread.join(1)

    def _copy(self) -> None:
        for stream, text in iter(self._lines.get, None):
            with suppress(OSError, ValueError, AttributeError):  # It is full, closed or missing.
                stream.write(text)
                stream.flush()

    def stranger(self, note: Note, route: str, status: int, seconds: float) -> None:
        """Write a line for a request that anybody can send, unless this second had enough of them.

        After :data:`STRANGERS` lines in a second, further requests are counted. Their number is
        logged when the next second's first request comes.
        """
        now = self._clock()
        if now - self._since >= 1:
            if self._strangers > STRANGERS:
                self.write("strangers", unlisted=self._strangers - STRANGERS)
            self._since, self._strangers = now, 0
        self._strangers += 1
        if self._strangers <= STRANGERS:
            self.request(note, route, status, seconds)

    def request(self, note: Note, route: str, status: int, seconds: float) -> None:
        """Write one line for a request that has ended.

        Args:
            route: the route's pattern in the application, not the path.
            status: HTTP status of the answer.
            seconds: duration from the request's first byte to the answer's last byte.
        """
        error = note.error
        self.write(
            "request", id=note.id, route=route, status=status, seconds=round(seconds, 6),
            model=None if note.model is None else note.model[:MAX_NAME],
            error=None if error is None else error.type,
            param=error.param if error and error.param and FIELD.fullmatch(error.param) else None,
            ignored=len(note.ignored) or None,
            without_effect=[at for at in note.ignored[:MOST] if FIELD.fullmatch(at)] or None,
            outputs=[_output(done) for done in note.done[:MAX_OUTPUTS]] or None,
            unlisted=len(note.done[MAX_OUTPUTS:]) or None,
        )  # fmt: skip


def _output(done: Done) -> dict[str, Any]:
    stats = done.stats
    return {
        "method": done.method, "finish_reason": done.finish_reason,
        "prompt_tokens": stats.prompt_tokens, "cached_tokens": stats.cached_tokens,
        "completion_tokens": stats.generated, "forwards": stats.forwards,
        "drafted": stats.drafted, "accepted": stats.accepted,
        "diffusion_steps": done.diffusion_steps,
        "time_to_first_token": done.time_to_first_token,
        "time": {name: round(value, 6) for name, value in stats.seconds().items()},
    }  # fmt: skip
