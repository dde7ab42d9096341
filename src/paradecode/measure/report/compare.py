"""Two result files side by side, whichever of the harnesses wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure import compare
from paradecode.measure.report.from_methods import Row, read_rows
from paradecode.measure.results import READABLE, results_from_json
from paradecode.measure.suites.parallel import compare as parallel
from paradecode.measure.suites.parallel.results import SCHEMA as PARALLEL
from paradecode.measure.suites.parallel.results import read_results as read_parallel
from paradecode.measure.tables import number
from paradecode.measure.validation import read_json

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
    old, new = read_json(before), read_json(now)
    kinds = _kind(old), _kind(new)
    if kinds[0] != kinds[1]:
        raise InvalidInput("results", list(kinds), "give two results of one kind")
    if baseline is not None and kinds[0] not in READABLE:
        raise InvalidInput(
            "baseline", baseline, "results of this kind have their own; leave it out"
        )
    if kinds[0] == PARALLEL:
        found = parallel.changes(read_parallel(before), read_parallel(now))
        return Compared(parallel.HEAD, parallel.rows(found), [])
    if kinds[0] == METHODS:
        rows = _methods({r.method: r for r in read_rows(before, old)}, read_rows(now, new))
        return Compared(METHODS_HEAD, rows, [])
    one, other = results_from_json(before, old), results_from_json(now, new)
    base = compare.common_baseline(one, other, baseline)
    changed = compare.rows(compare.changes(one, other, base), base)
    return Compared(compare.head(base), changed, compare.warnings(one, other))


def _kind(data: Mapping[str, Any]) -> str:
    schema = data.get("schema")
    if schema in READABLE:
        return READABLE[-1]
    if schema == PARALLEL:
        return PARALLEL
    if schema is None and isinstance(data.get("methods"), list):
        return METHODS
    raise InvalidInput("schema", schema, f"this version reads {', '.join((*READABLE, PARALLEL))}")


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
