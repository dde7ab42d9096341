"""Encode messages as lines of JSON. Lines have a bounded length, and reading them runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from paradecode.core.errors import InvalidInput
from paradecode.serve.validation import first_error
from paradecode.serve.wire import EVENTS, MAX_ID, REQUESTS, Event, Request, WireMessage

MAX_LINE = 1 << 24
"""The most bytes of one line, with its newline."""

_NAMES = {cls: name for name, cls in (*REQUESTS.items(), *EVENTS.items())}


class WireError(InvalidInput):
    """A line that cannot be understood. ``id`` is the request's id, if the line names one."""

    id: str | None = None


class LineTooLong(InvalidInput):
    """A message that is too long for a line."""


def encode(message: Request | Event) -> bytes:
    """Return the line for a message.

    Raises:
        LineTooLong: if the message is longer than a line may be.
        InvalidInput: if JSON cannot hold the message.
    """
    try:
        body = {"kind": _NAMES[type(message)], **vars(message)}
        line = json.dumps(body, default=vars, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError):
        raise InvalidInput(_NAMES[type(message)], message, "give plain finite JSON") from None
    if len(line) >= MAX_LINE:
        raise LineTooLong("request", f"{len(line)} bytes", f"give less than {MAX_LINE} bytes")
    return line + b"\n"


def decode(line: bytes, kinds: Mapping[str, type[WireMessage]]) -> Any:
    """Return the message of a line: a member of ``kinds``, which is ``REQUESTS`` or ``EVENTS``.

    Raises:
        WireError: naming the wrong field, and the request's id if the line has one.
    """
    if len(line) > MAX_LINE:
        raise WireError("line", f"{len(line)} bytes", f"give at most {MAX_LINE} bytes")
    try:
        body = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        raise WireError("line", line[:60], "write one JSON object") from None
    if not isinstance(body, dict):
        raise WireError("line", body, "write one JSON object")
    kind, sender = body.pop("kind", None), body.get("id")
    try:
        if not isinstance(kind, str) or kind not in kinds:
            raise InvalidInput("kind", kind, f"use one of {', '.join(kinds)}")
        return _adapter(kinds[kind]).validate_python(body)  # type: ignore[arg-type]
    except (InvalidInput, ValidationError) as error:
        found = first_error(body, error) if isinstance(error, ValidationError) else error
        refused = WireError(found.field, found.value, found.fix)
        refused.id = sender if isinstance(sender, str) and 0 < len(sender) <= MAX_ID else None
        raise refused from None


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits)
    return value
