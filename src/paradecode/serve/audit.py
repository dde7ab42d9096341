"""Give every request an id, a log line and a count, and an answer even if its route crashes."""

from __future__ import annotations

import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paradecode.serve.errors import ApiError
from paradecode.serve.log import Log, Note, places
from paradecode.serve.metrics import Metrics
from paradecode.serve.spans import Spans

IGNORED = "x-paradecode-ignored"
"""Name of the response header that lists the fields of the request that had no effect."""

LEFT = 499
"""Status in the log if the client left before it had an answer."""

MOST, LONGEST = 16, 100
"""The most ignored fields that the header lists, and the most characters of each field's name."""


class Audit:
    """Outermost ASGI middleware, which turns exceptions into error answers.

    The log says where in the code an exception was raised, and the client learns only that the
    server failed. The text of an exception may quote a request, so it is shown to nobody.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, log: Log | None, spans: Spans | None
    ) -> None:
        self.app, self.metrics, self.log, self.spans = app, metrics, log, spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        note, status, began = Note(), 0, time.perf_counter()
        arrived = time.time_ns()
        scope.setdefault("state", {})["note"] = note

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", note.id.encode())]
                if note.ignored:
                    own.append((IGNORED.encode(), _listed(note.ignored)))
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            self._crashed(note, error)
            if not status:
                note.error = ApiError(500, "the server failed to answer this request")
                await note.error.response(scope["path"])(scope, receive, send_with_id)
        finally:
            self._ended(scope, note, status, time.perf_counter() - began)
            if self.spans is not None and note.model is not None and scope["method"] == "POST":
                self.spans.record(note, _route(scope), status or LEFT, arrived, scope)

    def _ended(self, scope: Scope, note: Note, status: int, seconds: float) -> None:
        route, status = _route(scope), status or LEFT
        self.metrics.answered(route, status)
        if self.log is not None:
            # Anybody can ask for the server's status, or be refused, at no cost. So few such lines
            # are logged.
            anybody = status in (401, 403) or scope["method"] in ("GET", "HEAD")
            tell = self.log.stranger if anybody else self.log.request
            tell(note, route, status, seconds)

    def _crashed(self, note: Note, error: Exception) -> None:
        if self.log is None:
            return
        self.log.write("crash", id=note.id, error=type(error).__name__, where=places(error))


def _route(scope: Scope) -> str:
    """Return the route's pattern, which holds no text of the client."""
    return getattr(scope.get("route"), "path", "other")


def _listed(places: list[str]) -> bytes:
    """Return the first ignored fields as one header value.

    Special characters are percent-encoded.
    """
    return ", ".join(quote(place[:LONGEST], "/$[].") for place in places[:MOST]).encode()
