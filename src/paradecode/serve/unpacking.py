"""Decompress the bodies of requests, within a bound on their size."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from paradecode.serve.errors import ApiError

RATIO, ALWAYS = 64, 1 << 12
"""A body of n bytes may become at most the first number times n bytes, plus the second number."""

WINDOW = 1 << 23
"""The most bytes that a zstd body may refer back to.

RFC 8878 recommends that writers stay below.
"""


def _gzip(body: bytes, most: int) -> bytes:
    packed = zlib.decompressobj(wbits=31)
    found = packed.decompress(body, most + 1)
    if len(found) <= most and (not packed.eof or packed.unused_data):
        raise ValueError("it is not one whole member")
    return found


def _zstd(body: bytes, most: int) -> bytes:
    packed = zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(body)
    return packed.read(most + 1)  # A truncated body is no JSON, and fails later.


CODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd,
}  # fmt: skip


def room(size: int, most: int) -> int:
    """Return the most bytes that a body of ``size`` bytes may become, with the limit ``most``."""
    return min(most, RATIO * size + ALWAYS)


def unpacked(body: bytes, coding: str, most: int) -> bytes:
    """Return the decompressed body.

    Raises:
        ApiError: 400 if the body does not have this coding, 413 if it becomes more than ``most``
            bytes.
    """
    try:
        found = CODINGS[coding](body, most)
    except (zlib.error, zstandard.ZstdError, ValueError) as error:
        raise ApiError(400, f"the body is not {coding} ({error})") from None
    if len(found) > most:
        raise ApiError(413, f"the body becomes more than {most} bytes; send it without {coding}")
    return found
