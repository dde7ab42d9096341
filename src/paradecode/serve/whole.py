"""Write whole answers as JSON. Long answers are written in pieces, while other requests run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.responses import Response, StreamingResponse

PIECE = 1 << 16
"""Number of characters that are written at once, in some milliseconds.

More delay other requests.
"""


def whole(answer: dict[str, Any]) -> Response:
    """Return the response. Iterators in the answer become lists, and are never held as a whole."""
    pieces = _grouped(_texts(answer))
    first = next(pieces)
    second = next(pieces, None)
    if second is None:
        return Response(first, media_type="application/json")
    return StreamingResponse(_sent(first, second, pieces), media_type="application/json")


async def _sent(first: str, second: str, pieces: Iterator[str]) -> AsyncIterator[str]:
    yield first
    yield second
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def _grouped(texts: Iterator[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= PIECE:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


def _texts(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value in pieces."""
    if isinstance(value, dict):
        yield "{"
        for number, (name, inner) in enumerate(value.items()):
            yield f"{',' if number else ''}{_text(name)}:"
            yield from _texts(inner)
        yield "}"
    elif isinstance(value, (list, Iterator)):
        yield "["
        for number, inner in enumerate(value):
            if number:
                yield ","
            yield from _texts(inner) if isinstance(value, list) else (_text(inner),)
        yield "]"
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
