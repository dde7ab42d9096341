"""Turn pydantic's errors into one error for users, with the path of the wrong field."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paradecode.core.errors import InvalidInput

UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Types of pydantic's errors for a field that does not exist."""

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
"""Bound in pydantic's errors -> what it asks for, in words."""

MOST = 100
"""The most errors of pydantic for which the message has details."""


def first_error(value: Any, error: ValidationError) -> InvalidInput:
    """Return the first error in ``value``."""
    if error.error_count() > MOST:  # Pydantic would describe all of them.
        fix = "use the fields that the message has"
        return InvalidInput("line", f"{error.error_count()} errors", fix)
    found = error.errors(include_url=False)[0]
    about = found.get("ctx", {})
    own = about.get("error")
    if isinstance(own, InvalidInput):
        return own
    path = spelled(path_of(value, found))
    if found["type"] == "missing":
        return InvalidInput(path, None, "give it")
    if found["type"] in UNKNOWN:
        return InvalidInput(path, found["input"], "there is no such field")
    bounds = [f"give {BOUNDS[key]} {bound}" for key, bound in about.items() if key in BOUNDS]
    fix = bounds[0] if bounds else found["msg"][:1].lower() + found["msg"][1:]
    return InvalidInput(path, found["input"], fix)


def path_of(value: Any, detail: ErrorDetails) -> list[str | int]:
    """Return the path of an error in ``value``: pydantic's location without its notes on types."""
    path: list[str | int] = []
    location = list(detail["loc"])
    for step in location:
        is_key = isinstance(value, dict) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_key or is_index:
            value = value[step]
            path.append(step)
    if detail["type"] == "missing" and location:
        path.append(location[-1])
    return path


def spelled(path: list[str | int]) -> str:
    """Return the path as a text such as ``messages[0].content``."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).lstrip(".")
