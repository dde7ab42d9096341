"""Read a request's body as strict JSON of one class, with limits on size and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.errors import ApiError
from paradecode.serve.limits import Account
from paradecode.serve.protocol.base import AnyBody, settle, validated
from paradecode.serve.settings import ServerSettings
from paradecode.serve.sse import unless_gone
from paradecode.serve.unpacking import CODINGS, room, unpacked

T = TypeVar("T")

LARGE = 1 << 15
"""Bytes above which a body is parsed in a thread, so that other requests need not wait."""

BODIES = 1 << 26
"""The most bytes of all bodies that are being read. Beyond it, clients get a 503."""


_apart = ThreadPoolExecutor(1, "bodies")  # Only one, as threads slow the event loop.


class ArrivingBodies:
    """Counts the bytes of bodies that have arrived and are not parsed yet.

    An account may hold as many bytes as it leaves free: half of :data:`BODIES` if it is alone. So
    there is always room for one more account beside those that hold their most.
    """

    def __init__(self) -> None:
        self._held: Counter[Account] = Counter()

    def add(self, account: Account, size: int) -> None:
        """Count arrived bytes. Raise ApiError 503 if there is no room for them."""
        if self._held[account] + size > BODIES - self._held.total() - size:
            raise ApiError(503, "too many bodies are on their way; try again later")
        self._held[account] += size

    def remove(self, account: Account, size: int) -> None:
        self._held[account] -= size
        if not self._held[account]:
            del self._held[account]


def reading(kind: type[AnyBody]) -> Callable[[Request], Awaitable[AnyBody]]:
    """Return a FastAPI dependency that reads a request's body as a ``kind``, or refuses it.

    It also loads the model that the body names, if this model was never loaded. The route then
    knows the model's context and template.
    """

    async def read(request: Request) -> AnyBody:
        settings, account = request.app.state.settings, request.state.account
        account.request()
        coding = _check_head(request, settings.body_bytes)
        body, held, most = bytearray(), 0, settings.body_bytes
        try:
            await asyncio.wait_for(_collect(request, body, most), settings.body_seconds)
            if coding is not None:
                most = room(len(body), most)
                request.app.state.bodies.add(account, most)
                held = most
            request.state.large = len(body) + held >= LARGE
            parsed = partial(_parsed, kind, settings, body, coding, most)
            made, ignored = await apart(request, parsed)
            request.state.note.ignored += ignored
        except asyncio.TimeoutError:
            raise ApiError(408, "the body took too long to arrive") from None
        except ClientDisconnect:
            raise ApiError(400, "the body ended early") from None
        finally:
            request.app.state.bodies.remove(account, len(body) + held)
        await _introduce(request, getattr(made, "model", None))
        return made

    return read


async def _introduce(request: Request, named: str | None) -> None:
    """Load the model of a request if it was never loaded. Raise RequestFailed if that fails."""
    state, settings = request.app.state, request.app.state.settings
    name = settings.name_of(named)
    if settings.on_demand is not None and name is not None and name not in state.pool.ready:
        request.state.note.model = name
        id, key = request.state.note.id, request.state.account.tenant
        loading = state.pool.introduce(name, id, key, settings.request_seconds)
        await unless_gone(request, loading)


async def apart(request: Request, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which runs in a thread if the request's body was large."""
    if not request.state.large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_apart, work)


def _check_head(request: Request, limit: int) -> str | None:
    """Check the headers of a body, and return its content encoding, or None.

    Raises ApiError if the body is no JSON, or if it announces more than ``limit`` bytes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON with 'Content-Type: application/json'")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", *CODINGS):
        said = "use one of gzip and zstd as Content-Encoding, or none"
        raise ApiError(415, said, headers={"accept-encoding": "gzip, zstd"})
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > limit:
        raise _too_large(limit)
    return None if coding == "identity" else coding


async def _collect(request: Request, body: bytearray, limit: int) -> None:
    """Append the arriving bytes to ``body``, and count them."""
    bodies: ArrivingBodies = request.app.state.bodies
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:  # A chunked body announces no length.
            raise _too_large(limit)
        bodies.add(request.state.account, len(chunk))
        body += chunk


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"send at most {limit} bytes")


def _parsed(
    kind: type[AnyBody], settings: ServerSettings, body: bytearray, coding: str | None, most: int
) -> tuple[AnyBody, list[str]]:
    """Return the parsed body, and the places of its parts without effect."""
    text = bytes(body) if coding is None else unpacked(bytes(body), coding, most)
    try:
        made = validated(kind, strict_json.read(text))
        return made, settle(made, settings.strict, settings.ignore_unknown)
    except InvalidInput as error:
        refusal = ApiError(400, str(error), code="invalid_json")
    except ApiError as error:
        refusal = error
    # It holds no frame of the parser: the whole value there would stay until the answer is sent.
    refusal.__context__ = None
    raise refusal.with_traceback(None)
