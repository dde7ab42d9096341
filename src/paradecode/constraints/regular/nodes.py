"""Regular expressions over bytes, as trees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Node = "Bytes | Text | Sequence | Choice | Repeat"

MOST_REPEATS = 1000


@dataclass(frozen=True)
class Bytes:
    """Any one of these bytes."""

    values: frozenset[int]


@dataclass(frozen=True)
class Text:
    """These bytes, one after the other."""

    value: bytes


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Bytes | Text | Sequence | Choice | Repeat, ...]


@dataclass(frozen=True)
class Choice:
    """One of the parts; without parts nothing matches."""

    parts: tuple[Bytes | Text | Sequence | Choice | Repeat, ...]


@dataclass(frozen=True)
class Repeat:
    """``least`` to ``most`` times; ``most`` None is any number."""

    part: Bytes | Text | Sequence | Choice | Repeat
    least: int
    most: int | None


Expression = Bytes | Text | Sequence | Choice | Repeat
EMPTY = Text(b"")


def text(value: str) -> Text:
    return Text(value.encode())


def sequence(*parts: Expression) -> Expression:
    return Sequence(parts)


def choice(parts: Iterable[Expression]) -> Expression:
    return Choice(tuple(parts))


def optional(part: Expression) -> Expression:
    return Repeat(part, 0, 1)


TAIL = Bytes(frozenset(range(0x80, 0xC0)))
WIDE = Choice(
    (
        Sequence((Bytes(frozenset(range(0xC2, 0xE0))), TAIL)),
        Sequence((Bytes(frozenset({0xE0})), Bytes(frozenset(range(0xA0, 0xC0))), TAIL)),
        Sequence((Bytes(frozenset({*range(0xE1, 0xED), 0xEE, 0xEF})), TAIL, TAIL)),
        Sequence((Bytes(frozenset({0xED})), Bytes(frozenset(range(0x80, 0xA0))), TAIL)),
        Sequence((Bytes(frozenset({0xF0})), Bytes(frozenset(range(0x90, 0xC0))), TAIL, TAIL)),
        Sequence((Bytes(frozenset(range(0xF1, 0xF4))), TAIL, TAIL, TAIL)),
        Sequence((Bytes(frozenset({0xF4})), Bytes(frozenset(range(0x80, 0x90))), TAIL, TAIL)),
    )
)
"""Any character that UTF-8 writes with several bytes."""
