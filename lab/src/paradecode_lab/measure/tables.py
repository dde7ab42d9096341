"""Formats figures as texts, and tables of them as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paradecode_lab.measure.statistics import Estimate, Interval

Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Column(Generic[Shown]):
    """One column of a table: its name, and a function that maps a line to the column's cell."""

    head: str
    cell: Callable[[Shown], str]


def heads(columns: Iterable[Column[Shown]]) -> tuple[str, ...]:
    """Return the names of the columns, which are the first row of a table."""
    return tuple(column.head for column in columns)


def cells(columns: Iterable[Column[Shown]], line: Shown) -> tuple[str, ...]:
    """Return the cells of one line."""
    return tuple(column.cell(line) for column in columns)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def markdown(columns: Sequence[Column[Shown]], lines: Iterable[Shown]) -> str:
    """Return a Markdown table with a row for each line."""
    return table(heads(columns), [cells(columns, line) for line in lines])


def number(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def value(found: Estimate | None, scale: float = 1.0, absent: str = "-") -> str:
    """Format a value, multiplied by ``scale``, without its interval."""
    return absent if found is None else number(scale * found.value)


def spread(found: Interval | None, unit: str = "", absent: str = "-") -> str:
    """Format an interval as ``123 (110 to 131)``."""
    if found is None:
        return absent
    return f"{number(found.value)}{unit} ({number(found.low)} to {number(found.high)})"


def times(found: Interval | None, absent: str = "-") -> str:
    """Format a ratio as ``4.10x (3.90 to 4.30)``."""
    return spread(found, "x", absent)


def percent(found: Interval) -> str:
    """Format a share as ``97.5 % (95.0 to 99.1)``."""
    share, low, high = (f"{100 * v:.1f}" for v in (found.value, found.low, found.high))
    return f"{share} % ({low} to {high})"


def points(found: Interval) -> str:
    """Format a difference of shares in percentage points: ``-1.5 points (-3.1 to +0.1)``."""
    change, low, high = (f"{100 * v:+.1f}" for v in (found.value, found.low, found.high))
    return f"{change} points ({low} to {high})"


def ends(found: Estimate | None, scale: float = 1.0) -> str:
    """Format an estimate as ``12.3 (11.9-12.8)``; ``?`` stands for an end that is not known."""
    if found is None or (found.low is None and found.high is None):
        return value(found, scale, "")
    low, high = ("?" if end is None else number(scale * end) for end in (found.low, found.high))
    return f"{number(scale * found.value)} ({low}-{high})"
