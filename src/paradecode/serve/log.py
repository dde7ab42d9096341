"""Structured logs: one JSON object in each line, with counts and times, never prompts or
outputs."""

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

if TYPE_CHECKING:  # Workers log too, and need nothing of HTTP.
    from paradecode.serve.errors import ApiError

MAX_NAME = 256
"""Characters that are kept of a text that a client can choose."""

MAX_OUTPUTS = 64
"""Outputs of one request that are listed; further ones are counted."""

STRANGERS = 10
"""Lines a second for requests that anybody can send; further ones are counted."""

WAITING = 1024
"""Lines that may wait for a slow reader of the log."""

MOST = 16
"""Places in a request without effect that are listed."""

FIELD = re.compile(r"[a-z0-9_.\[\]]{1,80}", re.IGNORECASE)
"""The form of the server's own field names; any other name may be text that the client chose."""


@dataclass
class Note:
    """What the log says about a request. Routes fill it in. It has no prompt, no output and no
    error message, because that may quote the request.

    Attributes:
        model: the name as the client wrote it.
        done: how each output ended.
        ignored: places in the request that have no effect.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str | None = None
    done: list[Done] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    error: ApiError | None = None


def places(error: BaseException) -> list[str]:
    """The places in the code where an error was raised, without its text, which may quote a
    request."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]


class PlacesOnly(logging.Formatter):
    """A formatter that shows the kind of an exception and where it was raised, not its text."""

    def formatException(self, ei: Any) -> str:
        return f"{ei[0].__name__} at {', '.join(places(ei[1]))}"


class Log:
    """Writes lines to a stream (standard error by default); safe from several threads.

    A thread of its own writes them, so that a reader who is slow, or stops, delays nobody. Lines
    for which there is no room are counted in the next one. Where the stream cannot be written,
    nothing is.
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
        """Write one line: time, event, and the fields that are not None."""
        line = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
        fields["lost"] = self._lost or None
        line |= {"event": event, **{k: v for k, v in fields.items() if v is not None}}
        # Only ASCII and no newline inside: whatever a client sends, a line stays one line.
        text = json.dumps(line, default=str, separators=(",", ":"))
        try:
            self._lines.put_nowait((self._stream or sys.stderr, text + "\n"))
            self._lost = 0
        except Full:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, if that is possible within a second."""
        with suppress(Full):
            self._lines.put(None, timeout=1)
            self._thread.join(1)

    def _copy(self) -> None:
        for stream, text in iter(self._lines.get, None):
            with suppress(OSError, ValueError, AttributeError):  # It is full, closed or missing.
                stream.write(text)
                stream.flush()

    def stranger(self, note: Note, route: str, status: int, seconds: float) -> None:
        """Write a line for a request that anybody can send: after :data:`STRANGERS` lines in a
        second the others are counted, and told when the next second's first one comes."""
        now = self._clock()
        if now - self._since >= 1:
            if self._strangers > STRANGERS:
                self.write("strangers", unlisted=self._strangers - STRANGERS)
            self._since, self._strangers = now, 0
        self._strangers += 1
        if self._strangers <= STRANGERS:
            self.request(note, route, status, seconds)

    def request(self, note: Note, route: str, status: int, seconds: float) -> None:
        """Write one line for a request that is over.

        Args:
            route: the application's pattern.
            status: HTTP status of the answer.
            seconds: from the first byte in to the last byte out.
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
