"""Server-sent events: written as they come, kept alive, and ended when the client leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, ClassVar, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from paradecode.serve.errors import ApiError
from paradecode.serve.settings import ServerSettings

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": still here\n\n"
HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


def line(data: dict[str, Any]) -> bytes:
    """Return one line of JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class ClientGone(Exception):
    """The client closed its connection, so nobody reads the answer."""


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Return one event with ``data`` as JSON. Iterators in ``data`` become lists."""
    text = json.dumps(
        data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=list
    )
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


class EventStream(Response):
    """Sends what ``events`` yields. Closes ``events`` when all is sent or the client has left.

    Use :meth:`begin` to make one, so that a failure before the first event gets its own HTTP
    status.
    """

    kind: ClassVar[str] = "text/event-stream; charset=utf-8"
    ping: ClassVar[bytes] = PING

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], ping_seconds: float
    ) -> None:
        super().__init__(headers={"content-type": self.kind, **HEADERS})
        del self.headers["content-length"]
        self.first, self.events, self.ping_seconds = first, events, ping_seconds
        self._last = time.monotonic()

    @classmethod
    async def begin(cls, request: Request, events: AsyncGenerator[bytes, None]) -> EventStream:
        """Wait for the first event, and return the stream.

        Raises:
            ApiError: if the generator raises it instead of a first event.
            ClientGone: if the client leaves before the first event.
        """
        settings: ServerSettings = request.app.state.settings
        return cls(await unless_gone(request, events.__anext__()), events, settings.ping_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ping = asyncio.ensure_future(self._ping(send))
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await unless_gone(receive, self._write(send))
        except ClientGone:
            pass
        finally:
            await _end(ping)
            await self.events.aclose()

    async def _write(self, send: Send) -> None:
        try:
            await send(_body(self.first))
            async for data in self.events:
                self._last = time.monotonic()
                await send(_body(data))
        except ApiError as error:  # The status is sent, so the last event has the error.
            await send(_body(self.told(error)))
        await send(_body(b"", more=False))

    def told(self, error: ApiError) -> bytes:
        """Return the last event of a stream that fails."""
        return event(error.body)

    async def _ping(self, send: Send) -> None:
        while self.ping:
            await asyncio.sleep(self.ping_seconds)
            if time.monotonic() - self._last >= self.ping_seconds:
                await send(_body(self.ping))


class JsonLines(EventStream):
    """A stream of lines of JSON, as Ollama sends it. It has no comments to keep it alive."""

    kind = "application/x-ndjson"
    ping = b""

    def told(self, error: ApiError) -> bytes:
        return line({"error": error.message})


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def unless_gone(source: Request | Receive, work: Awaitable[T]) -> T:
    """Return the result of ``work``, which is cancelled if the client closes its connection.

    Args:
        source: the request, whose body must have been read.

    Raises:
        ClientGone: if the client has closed its connection.
    """
    receive = source.receive if isinstance(source, Request) else source
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        await _end(working, leaving)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that still run, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
