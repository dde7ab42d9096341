"""Dataclasses from JSON: every field has a check, and what no check knows is refused.

A check takes the field's name and a value, and returns the value or raises InvalidInput.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any

from paradecode.core.errors import InvalidInput

Check = Callable[[str, Any], Any]


def anything(where: str, value: Any) -> Any:
    return value


def flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(where, value, "give true or false")
    return value


def mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(where, value, "give an object")
    return value


def string(most: int, least: int = 0) -> Check:
    """A text of ``least`` to ``most`` characters."""

    def check(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInput(where, value, "give a text")
        if not least <= len(value) <= most:
            raise InvalidInput(
                where, f"{len(value)} characters", f"give {least} to {most} characters"
            )
        return value

    return check


def whole(low: int, high: int) -> Check:
    """A whole number from ``low`` up to, but not including, ``high``."""

    def check(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
            raise InvalidInput(where, value, f"give a whole number from {low} to {high - 1}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """A number from ``low`` to ``high``."""

    def check(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidInput(where, value, "give a number")
        if not low <= value <= high:
            raise InvalidInput(where, value, f"give a number from {low:g} to {high:g}")
        return float(value)

    return check


def one_of(*values: Any) -> Check:
    def check(where: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in values:
            raise InvalidInput(where, value, f"use one of {', '.join(map(str, values))}")
        return value

    return check


def listed(item: Check, most: int) -> Check:
    """A list of at most ``most`` entries, each of which passes ``item``."""

    def check(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidInput(where, value, "give a list")
        if len(value) > most:
            raise InvalidInput(where, f"{len(value)} entries", f"give at most {most}")
        try:
            return [item(where, entry) for entry in value]
        except InvalidInput:  # Only now is the name of each entry worth its cost.
            return [item(f"{where}[{index}]", entry) for index, entry in enumerate(value)]

    return check


def maybe(check: Check) -> Check:
    """The same, or null."""
    return lambda where, value: None if value is None else check(where, value)


def checked(check: Check, default: Any = MISSING) -> Any:
    """A dataclass field that must pass ``check``."""
    return field(default=default, metadata={"check": check})


def nested(cls: type) -> Check:
    """An object with the fields of a dataclass."""
    return lambda where, value: build(cls, value, where + ".")


def build(cls: type, body: Any, where: str = "") -> Any:
    """The dataclass of a JSON object.

    Args:
        cls: all its fields are ``checked``.
        where: what goes before the names of fields in errors.

    Raises:
        InvalidInput: naming the field that is unknown, missing or wrong.
    """
    if not isinstance(body, dict):
        raise InvalidInput(where.rstrip(".") or "line", body, "give an object")
    (checks, required), values = _checks(cls), {}
    for name, value in body.items():
        if name not in checks:
            raise InvalidInput(where + name, value, f"use one of {', '.join(checks)}")
        values[name] = checks[name](where + name, value)
    for name in required:
        if name not in values:
            raise InvalidInput(where + name, None, "it is missing")
    return cls(**values)


@cache
def _checks(cls: type) -> tuple[dict[str, Check], tuple[str, ...]]:
    """The check of each field, and the fields without a default."""
    required = tuple(entry.name for entry in fields(cls) if entry.default is MISSING)
    return {entry.name: entry.metadata["check"] for entry in fields(cls)}, required
