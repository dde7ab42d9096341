"""Reads a result file, whichever program wrote it, and makes its sheet."""

from __future__ import annotations

from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.report.from_methods import MethodRows, read_rows, sheet_of_methods
from paradecode_lab.measure.report.from_parallel import sheet_of_parallel
from paradecode_lab.measure.report.from_results import sheet_of_results
from paradecode_lab.measure.result_files import read_json, results_from_json
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.sheet import Sheet

OWN_BASELINE = "results of this kind have their own; leave it out"


def read_file(path: Path) -> tuple[Results | MethodRows, str | None]:
    """Return the content of a result file, and the baseline that the file names.

    Raises:
        InvalidInput: the file is not a result, or a field in it is wrong; the error names the
            field.
    """
    data = read_json(path)
    if data.get("schema") is None and isinstance(data.get("methods"), list):
        return read_rows(path, data), None
    stated = data.get("aggregates")
    named = stated.get("baseline") if isinstance(stated, dict) else None
    results = results_from_json(data)
    if results.is_load:
        fix = "`paradecode bench load` itself writes tables and a picture of requests to servers"
        raise InvalidInput("results", str(path), fix)
    return results, named


def read_sheet(path: Path, baseline: str | None = None) -> Sheet:
    """Read a result file, and make its sheet.

    Args:
        baseline: engine that ratios refer to; None takes the baseline that the file names.

    Raises:
        InvalidInput: the file is wrong (see :func:`read_file`), or the baseline was not measured.
    """
    found, named = read_file(path)
    has_own = isinstance(found, MethodRows) or found.is_parallel
    if baseline is not None and has_own:
        raise InvalidInput("baseline", baseline, OWN_BASELINE)
    if isinstance(found, MethodRows):
        return sheet_of_methods(found)
    if found.is_parallel:
        return sheet_of_parallel(found)
    measured = dict.fromkeys(record.engine for record in found.records if not record.error)
    if baseline is not None and baseline not in measured:
        fix = f"{path.name} has {', '.join(measured) or 'none'}"
        raise InvalidInput("baseline", baseline, fix)
    return sheet_of_results(found, baseline or named)
