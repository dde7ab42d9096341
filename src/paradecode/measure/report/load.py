"""A sheet from a file, whichever of the harnesses wrote it."""

from __future__ import annotations

from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.measure.report.from_methods import sheet_of_methods
from paradecode.measure.report.from_parallel import sheet_of_parallel
from paradecode.measure.report.from_results import sheet_of_results
from paradecode.measure.report.sheet import Sheet
from paradecode.measure.results import READABLE, results_from_json
from paradecode.measure.suites.parallel.results import SCHEMA as PARALLEL
from paradecode.measure.suites.parallel.results import read_results as read_parallel
from paradecode.measure.validation import read_json


def read_sheet(path: Path, baseline: str | None = None) -> Sheet:
    """The sheet of a result file.

    Args:
        baseline: engine that ratios refer to; None is the one that the file names.

    Raises:
        InvalidInput: the file is not a result, or something in it is wrong; the field is named.
    """
    data = read_json(path)
    schema = data.get("schema")
    if schema in READABLE:
        stated = data.get("aggregates")
        named = stated.get("baseline") if isinstance(stated, dict) else None
        return sheet_of_results(results_from_json(path, data), baseline or named)
    if schema == PARALLEL:
        return sheet_of_parallel(read_parallel(path))
    if schema is None and isinstance(data.get("methods"), list):
        return sheet_of_methods(path, data)
    raise InvalidInput("schema", schema, f"this version reads {', '.join((*READABLE, PARALLEL))}")
