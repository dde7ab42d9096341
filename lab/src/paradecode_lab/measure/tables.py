"""Formats of figures, and tables of them: for Markdown, pages and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paradecode_lab.measure.statistics import Estimate, Interval

Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Column(Generic[Shown]):
    """One column of a table: its name, and a function from a line to its cell."""

    head: str
    cell: Callable[[Shown], str]


def heads(columns: Iterable[Column[Shown]]) -> tuple[str, ...]:
    """The names of the columns, which are the first row."""
    return tuple(column.head for column in columns)


def cells(columns: Iterable[Column[Shown]], line: Shown) -> tuple[str, ...]:
    """The row of a line."""
    return tuple(column.cell(line) for column in columns)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def markdown(columns: Sequence[Column[Shown]], lines: Iterable[Shown]) -> str:
    """A Markdown table of all lines."""
    return table(heads(columns), [cells(columns, line) for line in lines])


def number(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def value(found: Estimate | None, scale: float = 1.0, absent: str = "-") -> str:
    """A value without its interval."""
    return absent if found is None else number(scale * found.value)


def spread(found: Interval | None, unit: str = "", absent: str = "-") -> str:
    """An interval in the form ``123 (110 to 131)``."""
    if found is None:
        return absent
    return f"{number(found.value)}{unit} ({number(found.low)} to {number(found.high)})"


def times(found: Interval | None, absent: str = "-") -> str:
    """A ratio in the form ``4.10x (3.90 to 4.30)``."""
    return spread(found, "x", absent)


def percent(found: Interval) -> str:
    """A share in the form ``97.5 % (95.0 to 99.1)``."""
    share, low, high = (f"{100 * v:.1f}" for v in (found.value, found.low, found.high))
    return f"{share} % ({low} to {high})"


def points(found: Interval) -> str:
    """A difference of shares in percentage points: ``-1.5 points (-3.1 to +0.1)``."""
    change, low, high = (f"{100 * v:+.1f}" for v in (found.value, found.low, found.high))
    return f"{change} points ({low} to {high})"


def ends(found: Estimate | None, scale: float = 1.0) -> str:
    """An estimate in the form ``12.3 (11.9-12.8)``; an end that is not known is a ``?``."""
    if found is None or (found.low is None and found.high is None):
        return value(found, scale, "")
    low, high = ("?" if end is None else number(scale * end) for end in (found.low, found.high))
    return f"{number(scale * found.value)} ({low}-{high})"
