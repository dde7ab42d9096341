"""Compares two result files of the same kind, whichever program wrote them."""

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
from paradecode_lab.measure.statistics import Interval, wilson
from paradecode_lab.measure.suites.parallel.summary import MethodComparison, compared, measured
from paradecode_lab.measure.tables import (
    Column,
    Shown,
    cells,
    heads,
    number,
    percent,
    points,
    times,
)

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
"""The columns for files of ``tools/figures/methods.py``.

They have totals only, because these files hold no single records that could be paired.
"""


@dataclass(frozen=True)
class Compared:
    """A comparison as a table.

    Attributes:
        head: names of the columns.
        rows: the table's rows.
        warnings: warnings if more than the code differs between the results.
        doubts: reasons to doubt the ratios.
    """

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    warnings: list[str]
    doubts: tuple[str, ...] = ()


def compare_files(before: Path, now: Path, baseline: str | None = None) -> Compared:
    """Compare two result files, and return what changed.

    Args:
        baseline: an engine that both `bench` results have, to which speed-ups refer. None takes the
            plain mode that all others refer to, if there is only one.

    Raises:
        InvalidInput: a file is wrong, the files are of different kinds, or they have nothing in
            common.
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
        changed = method_changes(old, new)
        return _compared(PARALLEL, changed, compare.warnings(old, new))
    base = compare.common_baseline(old, new, baseline)
    changes = compare.changes(old, new, base)
    doubts = compare.doubts(changes)
    return _compared(compare.columns(base), changes, compare.warnings(old, new), doubts)


@dataclass(frozen=True)
class MethodChange:
    """A method in both results: its present share of exact matches, and how it changed."""

    method: str
    exact: Interval
    versus: MethodComparison


PARALLEL: tuple[Column[MethodChange], ...] = (
    Column("method", lambda c: c.method),
    Column("exact match", lambda c: percent(c.exact)),
    Column("minus before", lambda c: points(c.versus.gain)),
    Column("fewer forwards", lambda c: times(c.versus.forwards)),
    Column("fewer rows", lambda c: times(c.versus.rows)),
    Column("x as fast", lambda c: times(c.versus.seconds)),
    Column("identical", lambda c: f"{c.versus.identical}/{c.versus.items}"),
)


def method_changes(before: Results, now: Results) -> list[MethodChange]:
    """Return how each method that both results have changed, in the order of ``now``.

    Raises:
        InvalidInput: the results have no method, instance or batch in common.
    """
    old, new = (measured(results) for results in compare.in_common(before, now))
    found = []
    for method in (name for name in new if name in old):
        versus = compared(new[method], old[method])
        if versus is not None:
            answers = new[method].answers.values()
            exact = wilson(sum(bool(answer.right) for answer in answers), len(answers))
            found.append(MethodChange(method, exact, versus))
    if not found:
        fix = "give results with methods, instances and batch in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found


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
