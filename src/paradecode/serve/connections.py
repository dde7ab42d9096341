"""HTTP connections with limits: on their number, on what clients send, and on slow clients."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paradecode.serve import heads
from paradecode.serve.door import Door, Visitor
from paradecode.serve.errors import ApiError
from paradecode.serve.lobby import FULL, LINGER
from paradecode.serve.security import digest
from paradecode.serve.settings import ServerSettings

PROBE = 0.1
"""Seconds until the server first checks whether a client that has ended its side still reads.

Each further check waits twice as long as the one before it.
"""

CHUNKS, CHUNK = 1024, 64
"""Number of chunks of a body that may have any size, and bytes for which one more is allowed."""


class _AnswerTransport:
    """The transport of one answer. Closing it does not lose bytes that were just sent."""

    def __init__(self, connection: Any) -> None:
        self.write, self.is_closing = connection.transport.write, connection.transport.is_closing
        self.close = connection.end


def limited(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """Return the protocol class of a server, for uvicorn's setting ``http``.

    The class checks the bytes of a request's head, and parses the head when it is whole and its
    turn has come. A connection handles one request after another, and a request whose body comes in
    chunks is its last. At the limit on connections, a new one replaces a connection that waits for
    its client, or gets an error. A connection is dropped if its request does not arrive in time, or
    if its client reads nothing of the answer; the application then sees that the client has left.
    If an answer is sent before its request has arrived whole, the rest of the request is thrown
    away unread. A client may end its own side and still read.
    """
    door = Door(settings.connections, {digest(key.key) for key in settings.keys})

    class Connection(HttpToolsProtocol):
        entrance, rank, owner = door, 0, b""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._arrived, self._head = bytearray(), b""
            self._left = self._chunks = self._length = 0
            self._chunked = self._deaf = self._keeps = self._half = False
            self._arriving: asyncio.TimerHandle | None = None
            self._writing: asyncio.TimerHandle | None = None
            self._probing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self._head:
                self.loop.call_soon(self.read)  # The transport has begun to read by then.
            elif door.enter(self):
                self._expect()
            else:
                self._refuse(ApiError(503, FULL))
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._arriving, self._writing, self._probing):
                _cancel(timer)
            door.leave(self)
            super().connection_lost(exc)
            if self.cycle is not None:  # The two objects refer to each other: break that.
                self.cycle.transport = self.transport

        def follow(self, guest: Visitor, head: bytes, rest: bytes) -> None:
            """Take the place of a guest of the lobby, whose request begins."""
            self.rank, self.owner, self._head = guest.rank, guest.owner, head
            self._arrived += rest
            door.replace(guest, self)

        def data_received(self, data: bytes) -> None:
            if self._deaf or (self._chunked and not self._left):
                return
            self._unset_keepalive_if_required()
            self._arrived += data
            if self._answering() and not self._left:
                self.flow.pause_reading()  # The next request has to wait.
            else:
                self._go_on()

        def eof_received(self) -> bool:  # type: ignore[override]
            """Return whether to continue: the request is complete, and the client may still
            read.
            """
            self._half = bool(self._head) or (self._answering() and not self._left)
            if self._half and self._probing is None:
                self._probe(PROBE)
            return self._half

        def pause_writing(self) -> None:
            super().pause_writing()
            door.wait(self)
            self._writing = self.loop.call_later(settings.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._writing)
            if self._answering():
                door.work(self)

        def shutdown(self) -> None:
            self._keeps = False
            super().shutdown()

        def read(self) -> None:
            if not self.transport.is_closing():
                self.flow.resume_reading()
                self._begin()
                self._go_on()

        def leave(self) -> None:
            self.transport.abort()

        def end(self) -> None:
            """End the connection after an answer was sent."""
            if self._left:
                self._hang_up()
            else:
                self.transport.close()

        def on_message_begin(self) -> None:
            if self._chunked:  # After a chunked body, nothing is read.
                raise heads.junk()
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._chunked:  # Headers after a chunked body are ignored.
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.url, host = heads.origin_form(self.url)
            if host is not None:
                self.headers[:] = [one for one in self.headers if one[0] != b"host"]
                self.headers.append((b"host", host))
            length = heads.body_length(self.headers, self.parser.get_http_version())
            self._chunked, self._chunks, self._length = length is None, 0, 0
            # A chunked body has the lengths of its chunks beside its own bytes.
            self._left = 2 * settings.body_bytes + (1 << 16) if length is None else length
            super().on_headers_complete()
            self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment]
            self._keeps = self.cycle.keep_alive and not self._chunked
            self.cycle.keep_alive = False  # An answer before the end closes the connection.
            if self._left:
                door.wait(self)

        def on_chunk_header(self) -> None:
            self._chunks += 1
            if self._chunks > CHUNKS + self._length // CHUNK:
                raise ApiError(400, f"send chunks of at least {CHUNK} bytes")

        def on_body(self, body: bytes) -> None:
            self._length += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            if self._chunked:
                self._left = 0
            if not self._left:
                door.work(self)
                if not self.cycle.response_started:
                    self.cycle.keep_alive = self._keeps
                super().on_message_complete()

        def on_response_complete(self) -> None:
            account = self.cycle.scope["state"].get("account")
            if account is not None:
                self.rank = max(self.rank, 1)
            door.wait(self)
            super().on_response_complete()
            self._go_on()
            if self._half and not (self._head or self._answering()):
                self.transport.close()

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _go_on(self) -> None:
            """Parse as many of the bytes that have arrived as may be parsed now."""
            while self._arrived and not (self._deaf or self.transport.is_closing()):
                if self._left:
                    self._take_body()
                elif self._head or self._chunked or self._answering() or not self._take_head():
                    return

        def _take_head(self) -> bool:
            """Begin the next request. Return False if it has to wait."""
            try:
                head = heads.split(self._arrived, settings.header_bytes)
            except ApiError as error:
                self._refuse(error)
                return False
            if head is None:
                self._expect()
                return False
            self._unexpect()
            self._head = head
            door.work(self)
            door.recognise(self, head)
            if door.turn(self):
                self._begin()
                return True
            self.flow.pause_reading()
            return False

        def _begin(self) -> None:
            """Begin the request whose head has arrived."""
            head, self._head = self._head, b""
            self._unset_keepalive_if_required()
            self.parser = httptools.HttpRequestParser(self)
            if self._parse(head) and not self._left and self.cycle.more_body:
                self.on_message_complete()

        def _take_body(self) -> None:
            piece = bytes(self._arrived[: self._left])
            del self._arrived[: self._left]
            self._left -= len(piece)
            if not self._chunked:
                self.on_body(piece)
                self.on_message_complete()
            elif self._parse(piece) and not self._left and self.cycle.more_body:
                self._refuse(ApiError(413, f"send at most {settings.body_bytes} bytes"))

        def _parse(self, data: bytes) -> bool:
            """Give bytes to the parser.

            If it refuses them, answer with an error and return False.
            """
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:  # Upgrades are ignored.
                return True
            except httptools.HttpParserError as error:
                if self._chunked and not self._left:
                    return True
                # The error keeps this frame, so no local variable may hold the error.
                self._refuse(
                    error.__context__ if isinstance(error.__context__, ApiError) else heads.junk()
                )
                return False
            return True

        def _expect(self) -> None:
            """Start the timer within which the head of a request has to arrive."""
            if self._arriving is None:
                self._arriving = self.loop.call_later(settings.header_seconds, self.transport.abort)

        def _unexpect(self) -> None:
            _cancel(self._arriving)
            self._arriving = None

        def _probe(self, wait: float) -> None:
            self._probing = self.loop.call_later(wait, self._ask, wait)

        def _ask(self, wait: float) -> None:
            """Find out whether the client still reads. This write fails if the client has left."""
            if not (self._answering() and self.cycle.response_started):
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._probe(2 * wait)

        def _hang_up(self) -> None:
            """Send no more, and ignore what arrives.

            Closing the connection at once would lose what was just sent.
            """
            if not self._deaf and not self.transport.is_closing():
                self._deaf = True
                self.transport.write_eof()
                self.loop.call_later(LINGER, self.transport.abort)

        def _refuse(self, error: ApiError) -> None:
            """Answer without the application, and close the connection."""
            started = False
            if self._answering():
                started, self.cycle.disconnected = self.cycle.response_started, True
                self.cycle.message_event.set()
            if not started:
                self.transport.write(heads.answer(error))
            self._hang_up()

    return Connection


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
