"""`paradecode report`: show benchmark results as a page, pictures or Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paradecode.cli.console import err, out
from paradecode.cli.options import grouped, option
from paradecode.cli.outputs import writable


@grouped
def report(
    results: Annotated[
        list[Path], typer.Argument(help="Results as JSON, from `paradecode bench` or `make bench`.")
    ],
    output: Path = option(
        Path("report.html"), "Write to this .html, .md or .png file, or to a folder.", "--output -o"
    ),
    baseline: str | None = option(None, "Engine that speed-ups refer to; default: the file's."),
) -> None:
    """Write a page of results: speed, quality, acceptance, batches, and where time goes.

    A folder gets the page, Markdown, and each chart as a picture.
    """
    from paradecode_lab.measure.charts.pictures import GET
    from paradecode_lab.measure.charts.style import can_draw
    from paradecode_lab.measure.report.load import read_sheet
    from paradecode_lab.measure.report.write import check_output, write_report

    check_output(output)
    writable("--output", output / "report.html" if output.is_dir() else output)
    if not can_draw() and output.suffix in ("", ".html"):
        err.print(f"no pictures without matplotlib: {GET}", markup=False, highlight=False)
    sheets = [read_sheet(path, baseline) for path in results]
    for file in write_report(sheets, output):
        out.print(str(file), soft_wrap=True, highlight=False)
