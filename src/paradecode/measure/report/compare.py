"""Two result files side by side, whichever of the harnesses wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure import compare
from paradecode.measure.report.from_methods import Row, read_rows
from paradecode.measure.result_files import read_json, results_from_json
from paradecode.measure.results import Results
from paradecode.measure.suites.parallel import compare as parallel
from paradecode.measure.tables import cells, heads, number

METHODS = "tools/figures/methods.py"
METHODS_HEAD = ("method", "tok/s before", "tok/s now", "x plain before", "x plain now", "equal now")


@dataclass(frozen=True)
class Compared:
    """A table, and what makes it a comparison of more than the code."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    warnings: list[str]


def compare_files(before: Path, now: Path, baseline: str | None = None) -> Compared:
    """What changed from one result to another.

    Args:
        baseline: an engine of both `bench` results that speed-ups refer to; default: the plain mode
            that all others refer to, if there is only one.

    Raises:
        InvalidInput: a file is wrong, they are of different kinds, or have nothing in common.
    """
    one, other = (_read(path, read_json(path)) for path in (before, now))
    kinds = _kind(one), _kind(other)
    if kinds[0] != kinds[1]:
        raise InvalidInput("results", list(kinds), "give two results of one kind")
    if baseline is not None and kinds[0] != "bench":
        raise InvalidInput(
            "baseline", baseline, "results of this kind have their own; leave it out"
        )
    if isinstance(one, Results) and isinstance(other, Results):
        return _results(one, other, baseline)
    assert isinstance(one, list)
    assert isinstance(other, list)
    return Compared(METHODS_HEAD, _methods({row.method: row for row in one}, other), [])


def _results(before: Results, now: Results, baseline: str | None) -> Compared:
    if now.is_parallel:
        changed = parallel.changes(before, now)
        rows = [cells(parallel.COLUMNS, change) for change in changed]
        return Compared(heads(parallel.COLUMNS), rows, [])
    base = compare.common_baseline(before, now, baseline)
    columns = compare.columns(base)
    rows = [cells(columns, change) for change in compare.changes(before, now, base)]
    return Compared(heads(columns), rows, compare.warnings(before, now))


def _read(path: Path, data: Mapping[str, Any]) -> Results | list[Row]:
    if data.get("schema") is None and isinstance(data.get("methods"), list):
        return read_rows(path, data)
    return results_from_json(path, data)


def _kind(found: Results | list[Row]) -> str:
    if isinstance(found, list):
        return METHODS
    return "bench --suite parallel" if found.is_parallel else "bench"


def _methods(before: Mapping[str, Row], now: list[Row]) -> list[tuple[str, ...]]:
    """Totals only: these files hold no single records that could be paired."""
    rows: list[tuple[str, ...]] = [
        (
            row.method, number(before[row.method].tokens_per_second),
            number(row.tokens_per_second), _ratio(before[row.method]), _ratio(row),
            f"{row.equal_to_plain}/{row.prompts}",
        )
        for row in now if row.method in before
    ]  # fmt: skip
    if not rows:
        raise InvalidInput("results", [row.method for row in now], "give methods in common")
    return rows


def _ratio(row: Row) -> str:
    return number(row.speed_up["value"]) if row.speed_up else "-"
