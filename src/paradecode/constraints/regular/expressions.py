"""Regular expressions over bytes, as trees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_REPEATS = 1000


@dataclass(frozen=True)
class Bytes:
    """Any one of these bytes."""

    values: frozenset[int]


@dataclass(frozen=True)
class Literal:
    """These bytes, one after the other."""

    value: bytes


@dataclass(frozen=True)
class Concatenation:
    """The parts, one after the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternation:
    """One of the parts; an alternation without parts matches nothing."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """The part ``least`` to ``most`` times; None is no limit."""

    part: Expression
    least: int
    most: int | None


Expression = Bytes | Literal | Concatenation | Alternation | Repeat
EMPTY = Literal(b"")


def text(value: str) -> Expression:
    """The text in UTF-8."""
    return Literal(value.encode())


def sequence(*parts: Expression) -> Expression:
    return Concatenation(parts)


def one_of(parts: Iterable[Expression]) -> Expression:
    return Alternation(tuple(parts))


def optional(part: Expression) -> Expression:
    return Repeat(part, 0, 1)


def _byte(low: int, high: int) -> Bytes:
    """A byte from ``low`` to ``high``."""
    return Bytes(frozenset(range(low, high + 1)))


_NEXT = _byte(0x80, 0xBF)
WIDE = one_of(
    [
        sequence(_byte(0xC2, 0xDF), _NEXT),
        sequence(_byte(0xE0, 0xE0), _byte(0xA0, 0xBF), _NEXT),
        sequence(Bytes(frozenset({*range(0xE1, 0xED), 0xEE, 0xEF})), _NEXT, _NEXT),
        sequence(_byte(0xED, 0xED), _byte(0x80, 0x9F), _NEXT),
        sequence(_byte(0xF0, 0xF0), _byte(0x90, 0xBF), _NEXT, _NEXT),
        sequence(_byte(0xF1, 0xF3), _NEXT, _NEXT, _NEXT),
        sequence(_byte(0xF4, 0xF4), _byte(0x80, 0x8F), _NEXT, _NEXT),
    ]
)
"""Any character that UTF-8 writes with several bytes."""


def between(low: int, high: int) -> Expression:
    """All whole numbers from ``low`` to ``high``, without leading zeros or ``-0``."""
    parts: list[Expression] = []
    if low < 0:
        parts.append(sequence(text("-"), _natural(max(1, -high), -low)))
    if high >= 0:
        parts.append(_natural(max(low, 0), high))
    return one_of(parts)


def _natural(low: int, high: int) -> Expression:
    """Natural numbers: one part for each number of digits."""
    parts = []
    while len(str(low)) < len(str(high)):
        edge = 10 ** len(str(low)) - 1
        parts.append(_digits(str(low), str(edge)))
        low = edge + 1
    return one_of([*parts, _digits(str(low), str(high))])


def _digits(low: str, high: str) -> Expression:
    """Numbers of one length, leading zeros included."""
    if not low:
        return EMPTY
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(_byte(ord("0"), ord("9")), len(low), len(low))
    if low[0] == high[0]:
        return sequence(text(low[0]), _digits(low[1:], high[1:]))
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    parts = [sequence(text(low[0]), _digits(low[1:], nines))]
    if int(high[0]) - int(low[0]) > 1:
        inner = _byte(ord(low[0]) + 1, ord(high[0]) - 1)
        parts.append(sequence(inner, _digits(zeros, nines)))
    parts.append(sequence(text(high[0]), _digits(zeros, high[1:])))
    return one_of(parts)
