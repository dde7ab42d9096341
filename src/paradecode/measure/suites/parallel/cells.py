"""How figures are written in tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.markdown import number
from paradecode.measure.statistics import Interval


def percent(found: Interval) -> str:
    """``97.5 % (95.0 to 99.1)``."""
    value, low, high = (f"{100 * v:.1f}" for v in (found.value, found.low, found.high))
    return f"{value} % ({low} to {high})"


def points(found: Interval) -> str:
    """A difference of exact match in percentage points: ``-1.5 points (-3.1 to +0.1)``."""
    value, low, high = (f"{100 * v:+.1f}" for v in (found.value, found.low, found.high))
    return f"{value} points ({low} to {high})"


def times(found: Interval | None) -> str:
    """``4.10x (3.90 to 4.30)``."""
    if found is None:
        return "-"
    return f"{number(found.value)}x ({number(found.low)} to {number(found.high)})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])
