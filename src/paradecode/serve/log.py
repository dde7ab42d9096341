"""Structured logs: one JSON object a line, with counts and times, never with what was said."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TextIO

from paradecode.serve.wire import Done

MAX_NAME = 256
"""Characters that are kept of a text that a client may choose."""

FIELD = re.compile(r"[a-z0-9_.\[\]]{1,80}", re.IGNORECASE)
"""Names of fields as ours are; an unknown field's name is the client's own text."""


class Log:
    """Writes lines to a stream (standard error by default); safe from several threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._turn = stream, threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """One line: time, event, and the fields that are not None."""
        line = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
        line |= {"event": event, **{k: v for k, v in fields.items() if v is not None}}
        # Only ASCII and no newline inside: whatever a client sends, a line stays one line.
        text = json.dumps(line, default=str, separators=(",", ":"))
        with self._turn:
            stream = self._stream or sys.stderr
            stream.write(text + "\n")
            stream.flush()

    def request(
        self,
        id: str,
        *,
        route: str,
        status: int,
        seconds: float,
        model: str | None = None,
        outputs: Sequence[Done] = (),
        error: str | None = None,
        param: str | None = None,
    ) -> None:
        """One line for a request that is over; there is no place in it for a prompt.

        Args:
            id: of the request, as the client was told.
            route: the application's pattern.
            status: of the answer.
            seconds: from the first byte in to the last byte out.
            model: as the client wrote it.
            outputs: how each output ended.
            error, param: type of the error, and the field that is wrong. Never the message, which
                may quote the value.
        """
        self.write(
            "request",
            id=id[:MAX_NAME],
            route=route,
            status=status,
            seconds=round(seconds, 6),
            model=None if model is None else model[:MAX_NAME],
            error=error,
            param=param if param and FIELD.fullmatch(param) else None,
            outputs=[_output(done) for done in outputs] or None,
        )


def _output(done: Done) -> dict[str, Any]:
    stats = done.stats
    return {
        "method": done.method,
        "finish_reason": done.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "completion_tokens": stats.generated,
        "forwards": stats.forwards,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "diffusion_steps": done.diffusion_steps,
        "time_to_first_token": done.time_to_first_token,
        "time": {name: round(value, 6) for name, value in stats.seconds().items()},
    }
