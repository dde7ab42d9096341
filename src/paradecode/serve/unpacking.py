"""Unpacks compressed bodies of requests, within a bound on what they become."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from paradecode.serve.errors import ApiError

RATIO, ALWAYS = 64, 1 << 12
"""The most bytes that one byte may become, beside so many that any body may become."""

WINDOW = 1 << 23
"""The most bytes that a zstd body may refer back to; what writes RFC 8878 stays below it."""


def _gzip(body: bytes, most: int) -> bytes:
    packed = zlib.decompressobj(wbits=31)
    found = packed.decompress(body, most + 1)
    if len(found) <= most and (not packed.eof or packed.unused_data):
        raise ValueError("it is not one whole member")
    return found


def _zstd(body: bytes, most: int) -> bytes:
    packed = zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(body)
    return packed.read(most + 1)  # What ends too early is no JSON.


CODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd,
}  # fmt: skip


def room(size: int, most: int) -> int:
    """The most bytes that a body of ``size`` bytes may become, of ``most`` for all bodies."""
    return min(most, RATIO * size + ALWAYS)


def unpacked(body: bytes, coding: str, most: int) -> bytes:
    """The body without its coding.

    Raises:
        ApiError: 400 for what is not of this coding, 413 for what becomes more than ``most`` bytes.
    """
    try:
        found = CODINGS[coding](body, most)
    except (zlib.error, zstandard.ZstdError, ValueError) as error:
        raise ApiError(400, f"the body is not {coding} ({error})") from None
    if len(found) > most:
        raise ApiError(413, f"the body becomes more than {most} bytes; send it without {coding}")
    return found
