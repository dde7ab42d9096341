"""Two result files side by side, whichever harness wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.timing.doubts import SUSPICIOUS
from paradecode_lab.measure import compare
from paradecode_lab.measure.report.from_methods import MethodRows, Row
from paradecode_lab.measure.report.load import OWN_BASELINE, read_file
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.suites.parallel import compare as parallel
from paradecode_lab.measure.tables import Column, Shown, cells, heads, number

METHODS: tuple[Column[tuple[Row, Row]], ...] = (
    Column("method", lambda pair: pair[0].method),
    Column("tok/s before", lambda pair: number(pair[0].tokens_per_second)),
    Column("tok/s now", lambda pair: number(pair[1].tokens_per_second)),
    Column("x plain before", lambda pair: pair[0].over_plain()),
    Column("x plain now", lambda pair: pair[1].over_plain()),
    Column(
        "tokens/forward",
        lambda pair: " -> ".join(number(row.tokens_a_forward) for row in pair),
    ),
    Column("equal now", lambda pair: f"{pair[1].equal_to_plain}/{pair[1].prompts}"),
)
"""Columns of totals only, because these files hold no single records that could be paired."""


@dataclass(frozen=True)
class Compared:
    """A table, warnings if it compares more than the code, and doubts about its ratios."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    warnings: list[str]
    doubts: tuple[str, ...] = ()


def compare_files(before: Path, now: Path, baseline: str | None = None) -> Compared:
    """The changes from one result to another.

    Args:
        baseline: an engine of both `bench` results that speed-ups refer to; default: the plain mode
            that all others refer to, if there is only one.

    Raises:
        InvalidInput: a file is wrong, they are of different kinds, or have nothing in common.
    """
    old, new = (read_file(path)[0] for path in (before, now))
    kinds = _kind(old), _kind(new)
    if kinds[0] != kinds[1]:
        raise InvalidInput("results", list(kinds), "give two results of one kind")
    if baseline is not None and kinds[0] != "bench":
        raise InvalidInput("baseline", baseline, OWN_BASELINE)
    if isinstance(old, MethodRows) and isinstance(new, MethodRows):
        pairs = [(old.methods[n], row) for n, row in new.methods.items() if n in old.methods]
        if not pairs:
            raise InvalidInput("results", list(new.methods), "give methods in common")
        suspicious = any(row.suspicious for pair in pairs for row in pair)
        return _compared(METHODS, pairs, doubts=(SUSPICIOUS,) if suspicious else ())
    assert isinstance(old, Results)
    assert isinstance(new, Results)
    if new.is_parallel:
        changed = parallel.changes(old, new)
        return _compared(parallel.COLUMNS, changed, compare.warnings(old, new))
    base = compare.common_baseline(old, new, baseline)
    changes = compare.changes(old, new, base)
    doubts = compare.doubts(changes)
    return _compared(compare.columns(base), changes, compare.warnings(old, new), doubts)


def _compared(
    columns: Sequence[Column[Shown]], lines: Iterable[Shown], warnings: Sequence[str] = (),
    doubts: Sequence[str] = (),
) -> Compared:  # fmt: skip
    rows = [cells(columns, line) for line in lines]
    return Compared(heads(columns), rows, list(warnings), tuple(doubts))


def _kind(found: Results | MethodRows) -> str:
    if isinstance(found, MethodRows):
        return "tools/figures/methods.py"
    return "bench --suite parallel" if found.is_parallel else "bench"
