"""A sheet from a file, whichever of the harnesses wrote it."""

from __future__ import annotations

from pathlib import Path

from paradecode.measure.report.from_methods import sheet_of_methods
from paradecode.measure.report.from_parallel import sheet_of_parallel
from paradecode.measure.report.from_results import sheet_of_results
from paradecode.measure.result_files import read_json, results_from_json
from paradecode.measure.sheet import Sheet


def read_sheet(path: Path, baseline: str | None = None) -> Sheet:
    """The sheet of a result file.

    Args:
        baseline: engine that ratios refer to; None is the one that the file names.

    Raises:
        InvalidInput: the file is not a result, or something in it is wrong; the field is named.
    """
    data = read_json(path)
    if data.get("schema") is None and isinstance(data.get("methods"), list):
        return sheet_of_methods(path, data)
    results = results_from_json(path, data)
    if results.is_parallel:
        return sheet_of_parallel(results)
    stated = data.get("aggregates")
    named = stated.get("baseline") if isinstance(stated, dict) else None
    return sheet_of_results(results, baseline or named)
