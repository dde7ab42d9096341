"""Read a request's body as strict JSON of one class, with limits on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.errors import ApiError
from paradecode.serve.protocol.base import AnyBody, known_only, validated

T = TypeVar("T")

LARGE = 1 << 15
"""Bytes from which on a body is parsed in a thread, so that other requests need not wait."""

BODIES = 1 << 26
"""Bytes of all bodies that are being read; more are asked to come back."""

_apart = ThreadPoolExecutor(1, "bodies")  # One: threads take the event loop's time.


def reading(kind: type[AnyBody]) -> Callable[[Request], Awaitable[AnyBody]]:
    """A FastAPI dependency that gives the request's body as a ``kind``, or refuses it."""

    async def read(request: Request) -> AnyBody:
        state, settings = request.app.state, request.app.state.settings
        request.state.account.request()
        size = _size(request, settings.body_bytes)
        if state.bodies + size > BODIES:
            raise ApiError(503, "too many bodies are on their way")
        state.bodies += size
        try:
            body = await asyncio.wait_for(_collect(request, size), settings.body_seconds)
            request.state.large = len(body) >= LARGE
            return await apart(request, partial(_parsed, kind, settings.ignore_unknown, body))
        except asyncio.TimeoutError:
            raise ApiError(408, "the body took too long to arrive") from None
        except ClientDisconnect:
            raise ApiError(400, "the body ended early") from None
        finally:
            state.bodies -= size

    return read


async def apart(request: Request, work: Callable[[], T]) -> T:
    """The result of ``work``, done in a thread if the request's body was large."""
    if not request.state.large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_apart, work)


def _size(request: Request, limit: int) -> int:
    """The body's length, or the limit where it is not said."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON with 'Content-Type: application/json'")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "send the body without Content-Encoding")
    if "transfer-encoding" in request.headers:
        return limit
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > limit:
        raise _too_large(limit)
    return int(length)


async def _collect(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"send at most {limit} bytes")


def _parsed(kind: type[AnyBody], ignore_unknown: bool, body: bytes) -> AnyBody:
    try:
        return validated(kind, known_only(kind, strict_json.read(body), ignore_unknown))
    except InvalidInput as error:
        raise ApiError(400, str(error), code="invalid_json") from None
