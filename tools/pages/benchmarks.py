"""``python -m tools.pages.benchmarks results.json``: tables and pictures of a stored result."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.measure.markdown import report
from paradecode.measure.report.engines import write_report
from paradecode.measure.result_files import read_results
from paradecode.measure.summary import summarise
from tools.pages.marked import insert


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages.benchmarks", description=__doc__)
    parser.add_argument("results", type=Path, help="JSON file of a run")
    parser.add_argument("--baseline", help="engine that speed-ups refer to")
    parser.add_argument("--folder", type=Path, help="write all files there")
    parser.add_argument("--into", type=Path, help="put the tables between the document's markers")
    given = parser.parse_args()
    try:
        results = read_results(given.results)
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.folder:
        for file in write_report(results, given.folder, given.baseline):
            print(file)
        return 0
    text = report(results, summarise(results, given.baseline), given.baseline)
    if not given.into:
        print(text)
        return 0
    try:
        page = insert(given.into.read_text("utf-8"), "bench", f"\n{text}")
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    given.into.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
