"""Checks a constraint's value against limits that bound the work of compiling it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paradecode.core.checks import text
from paradecode.core.errors import InvalidInput

MAX_TEXT = 1 << 16
"""The most characters of a schema, of a grammar, or of all choices together."""
MAX_DEPTH = 64
MAX_REGEX = 8192
MAX_CHOICES = 1024

FIELD = "constraint.value"


def refused(value: object, fix: str) -> InvalidInput:
    """Return the error for a refused value of a constraint, with the fix."""
    return InvalidInput(FIELD, value, fix)


def checked_schema(value: object) -> dict[str, Any]:
    """Return a JSON schema that is given as a mapping or as JSON text.

    ``True`` and ``{}`` allow any JSON.

    Raises:
        InvalidInput: if it is not JSON, too long or too deep.
    """
    if isinstance(value, str):
        checked_text(value, MAX_TEXT)
        try:
            value = json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise refused(value, f"give JSON: {error}") from None
    if value is True:
        return {}
    if not isinstance(value, Mapping):
        raise refused(value, "give a JSON schema: an object, or its text")
    _check_depth(value)
    try:
        told = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise refused(value, f"give what JSON can express: {error}") from None
    checked_text(told, MAX_TEXT)
    return dict(json.loads(told))


def checked_text(value: object, most: int) -> str:
    """Return ``value`` if it is a text of 1 to ``most`` characters without lone surrogates.

    Raises:
        InvalidInput: for any other value.
    """
    known: str = text(most, 1)(FIELD, value)
    try:
        known.encode()
    except UnicodeEncodeError as error:
        raise refused(known[error.start], "remove the lone surrogate") from None
    return known


def checked_choices(value: object) -> list[str]:
    """Return the distinct texts of a list.

    Raises:
        InvalidInput: if a text is empty or the texts are too long.
    """
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_CHOICES:
        raise refused(value, f"give a list of 1 to {MAX_CHOICES} texts")
    texts = [checked_text(each, MAX_TEXT) for each in value]
    if sum(map(len, texts)) > MAX_TEXT:
        raise refused(f"{len(texts)} texts", f"give {MAX_TEXT} characters in all")
    return list(dict.fromkeys(texts))


def _check_depth(value: object) -> None:
    """Raise InvalidInput for a value that is too deep, too large, or contains itself."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, (list, tuple)):
                inner += item
        if not inner:
            return
        if len(inner) > MAX_TEXT:
            break
        level = inner
    raise refused(value, f"nest at most {MAX_DEPTH} deep, and list less")


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")
