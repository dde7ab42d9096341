"""Check the head of an HTTP request (first line and headers) before anything parses it."""

from __future__ import annotations

import re
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from paradecode.serve.errors import ApiError

LINES, PARTS, TARGET = 100, 1024, 8 << 10
"""The most lines of a head, the most list entries in it, and the most bytes of its first line.

A list entry is a header, a value between commas, a parameter of a query, or an escaped letter of a
path. Parsing one costs as much as parsing a hundred plain bytes.
"""

PART = re.compile(rb"[,;&%=]")
KEYS = tuple(
    re.compile(rb"\r\n%s([^\r]*)" % name, re.IGNORECASE)
    for name in (rb"authorization:[ \t]*bearer[ \t]+", b"x-api-key:")
)
"""Headers that have a key; the first one that is there counts."""

ORIGIN = re.compile(rb"\r\norigin:[ \t]*([!-~]+)", re.IGNORECASE)
BODY = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
FOLDED = re.compile(rb"\r\n[ \t]")
END = b"\r\n\r\n"
ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def answer(error: ApiError, path: str = "") -> bytes:
    """Return the bytes of an error to a request for a path, as the last answer of a connection."""
    response = error.response(path)
    said = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
    return STATUS_LINE[error.status] + said + b"connection: close\r\n\r\n" + response.body


def junk() -> ApiError:
    """Return a new error 400 for an invalid head.

    An error object that is raised twice would keep the stack frames of the first time.
    """
    return ApiError(400, "this is not a valid HTTP request")


def split(arrived: bytearray, most: int) -> bytes | None:
    """Take the next head from the start of ``arrived``. Return None if its end has not arrived.

    A line ends with CR and LF, because proxies disagree about a bare LF.

    Args:
        most: the most bytes that the head may have.

    Raises:
        ApiError: 400 if the bytes cannot be a head, 431 if the head is too large.
    """
    if arrived.startswith(b"\r\n"):  # Some clients end a body with an empty line.
        del arrived[:2]
    end = arrived.find(END, 0, most + len(END))
    head = bytes(arrived[: end + len(END)] if end >= 0 else arrived[: most + 1])
    if (
        head.count(b"\n") > head.count(b"\r\n")
        or FOLDED.search(head)
        or not (head[:1].isalpha() or head in b"\r\n")
    ):
        raise junk()
    if len(head) > most:
        raise ApiError(431, f"send at most {most} bytes of path and headers")
    if end < 0:
        return None
    del arrived[: len(head)]
    if head.count(b"\n") > LINES + 2 or len(PART.findall(head)) > PARTS:
        raise ApiError(431, f"send at most {LINES} headers, with {PARTS} parts of lists in all")
    if head.index(b"\r\n") > TARGET:
        raise ApiError(431, f"send at most {TARGET} bytes of path and query")
    return head


def shown_key(head: bytes) -> str:
    """Return the key in a head that is not parsed yet, or "" if the head has no key."""
    found = next(filter(None, (key.search(head) for key in KEYS)), None)
    return found[1].decode("latin-1").strip() if found else ""


def shown_origin(head: bytes) -> bytes:
    """Return the origin of the page that sent a head, or b"" if the head names none."""
    found = ORIGIN.search(head)
    return found[1] if found else b""


def announces_body(head: bytes) -> bool:
    return BODY.search(head) is not None


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """Return a target's path with its query, and the host if the target is an absolute address."""
    absolute = ABSOLUTE.match(target)
    if absolute is None:
        return target, None
    host, rest = absolute.groups()
    return rest if rest.startswith(b"/") else b"/" + rest, host


def path(head: bytes) -> str:
    """Return the path that a head asks for, which is not parsed yet."""
    target, _ = origin_form(head.split(b" ", 2)[1] if head.count(b" ") > 1 else b"")
    found = target.partition(b"?")[0].decode("latin-1")
    return unquote(found) if "%" in found else found


def body_length(headers: list[tuple[bytes, bytes]], version: str) -> int | None:
    """Return the length in bytes of the body that a head announces; None for a chunked body.

    Args:
        headers: names in lower case, with values.

    Raises:
        ApiError: 400 if the head leaves unclear where the request ends or which host it is for, and
            for HTTP versions other than 1.0 and 1.1.
    """
    found = dict(headers)
    once = [name for name, _ in headers if name in (b"host", b"content-length")]
    if version not in ("1.0", "1.1") or len(once) > len(set(once)):
        raise junk()
    if version == "1.1" and b"host" not in found:
        raise ApiError(400, "send one Host header")
    coding = found.get(b"transfer-encoding")
    if coding is None:
        return int(found.get(b"content-length", b"0"))
    if coding.lower() != b"chunked" or version == "1.0" or b"content-length" in found:
        raise ApiError(400, "send a Content-Length, or 'Transfer-Encoding: chunked'")
    return None
