"""Whole numbers between two bounds as an expression over their decimal digits."""

from __future__ import annotations

from paradecode.constraints.regular.nodes import Bytes, Expression, Repeat, choice, sequence, text


def between(low: int, high: int) -> Expression:
    """All whole numbers from ``low`` to ``high``, without leading zeros or ``-0``."""
    parts: list[Expression] = []
    if low < 0:
        parts.append(sequence(text("-"), _natural(max(1, -high), -low)))
    if high >= 0:
        parts.append(_natural(max(low, 0), high))
    return choice(parts)


def _natural(low: int, high: int) -> Expression:
    """By number of digits."""
    parts = []
    while len(str(low)) < len(str(high)):
        edge = 10 ** len(str(low)) - 1
        parts.append(_digits(str(low), str(edge)))
        low = edge + 1
    return choice([*parts, _digits(str(low), str(high))])


def _digits(low: str, high: str) -> Expression:
    """Numbers of one length, zeros in front included."""
    if not low:
        return text("")
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(_digit("0", "9"), len(low), len(low))
    if low[0] == high[0]:
        return sequence(text(low[0]), _digits(low[1:], high[1:]))
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    parts = [sequence(text(low[0]), _digits(low[1:], nines))]
    if int(high[0]) - int(low[0]) > 1:
        inner = _digit(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        parts.append(sequence(inner, _digits(zeros, nines)))
    parts.append(sequence(text(high[0]), _digits(zeros, high[1:])))
    return choice(parts)


def _digit(low: str, high: str) -> Expression:
    return Bytes(frozenset(range(ord(low), ord(high) + 1)))
