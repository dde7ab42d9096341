"""The keys of clients, and the limits on what the holder of a key may ask for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paradecode.core.checks import (
    attributes,
    build,
    checked,
    flag,
    json_object,
    known,
    listed,
    mapping,
    maybe,
    text,
    whole,
)
from paradecode.core.errors import InvalidInput

MAX_KEYS = 1024
"""The most keys. Each key has its own metrics, and each request is compared with all keys."""

MIN_KEY, MAX_KEY = 8, 1024
LOWEST, HIGHEST = -100, 100
"""The lowest and the highest priority that a request may have."""

MAX_RATE = 1 << 40


def _secret(name: str, value: Any) -> str:
    right = isinstance(value, str) and value.isascii() and value.isprintable()
    if not right or not MIN_KEY <= len(value) <= MAX_KEY:
        size = len(value) if isinstance(value, str) else "no"
        shown = f"a key of {size} characters"  # Never the key itself.
        raise InvalidInput(name, shown, f"give {MIN_KEY} to {MAX_KEY} ASCII characters")
    return str(value)


def _label(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]{1,64}", value, re.ASCII):
        raise InvalidInput(name, value, "give 1 to 64 letters, digits, '.', '-' or '_'")
    return value


def _priorities(name: str, value: Any) -> tuple[int, int]:
    found = listed(whole(LOWEST, HIGHEST), 2)(name, value)
    if len(found) != 2 or found[0] > found[1]:
        raise InvalidInput(name, value, "give the lowest and the highest, such as [-10, 10]")
    return found[0], found[1]


def _salts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(listed(text(256, 1), 1 << 12)(name, value))


@dataclass(frozen=True, kw_only=True)
class KeyLimits:
    """Limits on what the holder of a key may ask for; None means no limit.

    Attributes:
        requests_per_minute: the most requests that are admitted within any 60 seconds.
        tokens_per_minute: the most tokens of these requests, where prompts and outputs count.
        sequences: the most outputs that run at the same time, summed over models.
        queue: the most outputs that may wait for one of these places; further requests get a 429.
        priorities: lowest and highest priority; a request without one gets the nearest to 0.
        salts: the allowed values of ``cache_salt``.
        operator: whether the holder sees counts, load and caches of all keys together.

    Raises:
        InvalidInput: naming the field that is wrong.
    """

    requests_per_minute: int | None = checked(maybe(whole(1, MAX_RATE)), None)
    tokens_per_minute: int | None = checked(maybe(whole(1, MAX_RATE)), None)
    sequences: int | None = checked(maybe(whole(1, 1 << 16)), None)
    queue: int = checked(whole(0, 1 << 16), 256)
    priorities: tuple[int, int] = checked(_priorities, (LOWEST, HIGHEST))
    salts: tuple[str, ...] | None = checked(maybe(_salts), None)
    operator: bool = checked(flag, False)

    def __post_init__(self) -> None:
        attributes(self)


@dataclass(frozen=True, kw_only=True)
class Key(KeyLimits):
    """A key with its limits, and a name for metrics. The text of the key is never shown."""

    name: str = checked(_label)
    key: str = field(repr=False, metadata={"check": _secret})


FIELDS = tuple(entry.name for entry in fields(Key) if entry.name != "name")


def plain_keys(keys: Sequence[str]) -> tuple[Key, ...]:
    """Return keys without limits, named ``key-1``, ``key-2`` and so on."""
    for key in keys:
        _secret("api_key", key)
    return tuple(Key(name=f"key-{number}", key=key) for number, key in enumerate(keys, 1))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the keys in a file: a JSON object from names to objects with ``key`` and limits.

    Raises:
        InvalidInput: naming the wrong field, such as ``keys.alice.queue``.
    """
    found = []
    for name, given in json_object(path, "keys", 1 << 24).items():
        where = f"keys.{_label('keys', name)}"
        known(FIELDS, mapping(where, given), where)  # The error shows no value, which may be a key.
        found.append(build(Key, {"name": name, **given}, where))
    return tuple(found)


def check_keys(keys: Sequence[Key]) -> None:
    """Raise InvalidInput if there are too many keys, or if two have the same name or text."""
    if len(keys) > MAX_KEYS:
        raise InvalidInput("keys", len(keys), f"give at most {MAX_KEYS}")
    for what in ("name", "key"):
        seen: dict[str, str] = {}
        for one in keys:
            if (found := getattr(one, what)) in seen:
                both = f"{seen[found]} and {one.name}"
                raise InvalidInput("keys", both, f"give each a {what} of its own")
            seen[found] = one.name
