"""Read a request's body as strict JSON of one class, with limits on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.errors import ApiError
from paradecode.serve.protocol.base import AnyBody, validated
from paradecode.serve.settings import ServerSettings

LARGE = 1 << 15
"""Bytes from which on a body is parsed in a thread, so that other requests need not wait."""

CLOSE = {"connection": "close"}
"""For answers to a body that is not read to its end."""


def reading(kind: type[AnyBody]) -> Callable[[Request], Awaitable[AnyBody]]:
    """A FastAPI dependency that gives the request's body as a ``kind``, or refuses it."""

    async def read(request: Request) -> AnyBody:
        settings: ServerSettings = request.app.state.settings
        _check_headers(request, settings.body_bytes)
        try:
            body = await asyncio.wait_for(
                _collect(request, settings.body_bytes), settings.body_seconds
            )
        except asyncio.TimeoutError:
            raise ApiError(408, "the body took too long to arrive", headers=CLOSE) from None
        except ClientDisconnect:
            raise ApiError(400, "the body ended early") from None
        if len(body) < LARGE:
            return _parsed(kind, body)
        return await asyncio.to_thread(_parsed, kind, body)

    return read


def _check_headers(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON with 'Content-Type: application/json'")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "send the body without Content-Encoding")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)


async def _collect(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"send at most {limit} bytes", headers=CLOSE)


def _parsed(kind: type[AnyBody], body: bytes) -> AnyBody:
    try:
        return validated(kind, strict_json.read(body))
    except InvalidInput as error:
        raise ApiError(400, str(error), code="invalid_json") from None
