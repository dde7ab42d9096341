"""Connections with limits on their number, on the size of headers, and on slow clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from paradecode.serve.errors import ApiError
from paradecode.serve.settings import ServerSettings

LINGER = 1.0
"""Seconds that a client has to read an answer that was sent before its request had ended."""

JUNK = ApiError(400, "this is not a valid HTTP request, or its header is large")


class _Parser(h11.Connection):
    """A parser that refuses every ``Transfer-Encoding``. Chunks of one byte cost more than any
    other request, and a request that does not state its length once and for all can smuggle
    another one."""

    refusal = JUNK

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and b"transfer-encoding" in dict(event.headers):
            self.refusal = ApiError(411, "send a Content-Length, and no Transfer-Encoding")
            raise h11.RemoteProtocolError(self.refusal.message)
        return event

    def send(self, event: Any) -> Any:
        """Send an event. An answer before the end of its request says that the connection ends,
        because a client might otherwise send its next request on it. h11 does not learn this: on
        reading it, h11 would close at once (see LINGER)."""
        said = super().send(event)
        early = isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY
        if said and early and b"connection" not in dict(event.headers):
            return said[:-2] + b"connection: close\r\n\r\n"
        return said


def limited(settings: ServerSettings) -> type[H11Protocol]:
    """The protocol class of a server, for uvicorn's ``http`` setting.

    The parser bounds headers and refuses what is not HTTP. This class adds three limits. A
    connection beyond the allowed number gets an error and is closed. A connection whose request
    does not arrive in time is dropped, and so is one that takes nothing of its answer; the
    application then sees a client that has left. If an answer is sent before its request has
    arrived whole, the rest of the request is thrown away unread.
    """

    class Connection(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn = self._parser = _Parser(h11.SERVER, settings.header_bytes)
            self._deaf = False
            self._arriving: asyncio.TimerHandle | None = None
            self._writing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.connections:
                self._refuse(ApiError(503, "the server has all the connections it may have"))
                self.transport.close()
            else:
                self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unexpect()
            self._unwrite()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self._deaf:
                return
            super().data_received(data)
            if self._answering():
                self._unexpect()
            else:
                self._expect()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing = self.loop.call_later(settings.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unwrite()

        def send_400_response(self, msg: str) -> None:
            self._refuse(self._parser.refusal)

        def on_response_complete(self) -> None:
            if self.conn.their_state is h11.SEND_BODY:
                self._hang_up()
            super().on_response_complete()

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _expect(self) -> None:
            """Start the clock: a request's header has to arrive in time from here on."""
            if self._arriving is None:
                self._arriving = self.loop.call_later(settings.header_seconds, self.transport.abort)

        def _unexpect(self) -> None:
            if self._arriving is not None:
                self._arriving.cancel()
                self._arriving = None

        def _unwrite(self) -> None:
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None

        def _hang_up(self) -> None:
            """Send no more, and ignore what arrives. Closing at once would lose what was just
            sent."""
            if not self._deaf and not self.transport.is_closing():
                self._deaf = True
                self.transport.write_eof()
                self.loop.call_later(LINGER, self.transport.abort)

        def _refuse(self, error: ApiError) -> None:
            """Answer without the application, and close."""
            body = json.dumps(error.body).encode()
            head = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                *([(b"retry-after", b"1")] if error.status == 503 else []),
            ]
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                for event in (
                    h11.Response(status_code=error.status, headers=head),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self._hang_up()

    return Connection
