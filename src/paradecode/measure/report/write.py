"""Sheets as files: a page, pictures, Markdown, or all of them in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.measure.charts.all import charts_of
from paradecode.measure.charts.looks import looks_of
from paradecode.measure.charts.pictures import save_charts
from paradecode.measure.charts.style import can_draw
from paradecode.measure.report.markdown import markdown
from paradecode.measure.report.page import page
from paradecode.measure.sheet import Sheet

SUFFIXES = (".html", ".md", ".png")


def check_output(output: Path) -> None:
    """Raise InvalidInput for a target that cannot be written."""
    if output.suffix not in (*SUFFIXES, "") and not output.is_dir():
        raise InvalidInput("output", str(output), f"name a folder, or {', '.join(SUFFIXES)}")
    if not output.absolute().parent.is_dir():
        raise InvalidInput("output", str(output), "name something in a folder that exists")


def write_report(sheets: Sequence[Sheet], output: Path) -> list[Path]:
    """Write a ``.html``, ``.md`` or ``.png`` file, or a folder with all of them.

    In a folder each chart is a picture of its own; there are none without matplotlib.

    Raises:
        InvalidInput: another kind of file, or a ``.png`` without matplotlib.
    """
    check_output(output)
    if output.suffix == ".html":
        output.write_text(page(sheets), "utf-8")
    elif output.suffix == ".md":
        output.write_text(markdown(sheets), "utf-8")
    elif output.suffix == ".png":
        looks = looks_of(sheets)
        charts = [chart for sheet in sheets for chart in charts_of(sheet, looks).values()]
        title = sheets[0].title if len(sheets) == 1 else "Paradecode benchmarks"
        save_charts(charts, output, title)
    else:
        return _folder(sheets, output)
    return [output]


def _folder(sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "report.html").write_text(page(sheets), "utf-8")
    (folder / "report.md").write_text(markdown(sheets), "utf-8")
    written = [folder / "report.html", folder / "report.md"]
    if not can_draw():
        return written
    looks = looks_of(sheets)
    for number, sheet in enumerate(sheets, 1):
        for name, chart in charts_of(sheet, looks).items():
            stem = name if len(sheets) == 1 else f"{number}-{name}"
            written.append(save_charts([chart], folder / f"{stem}.png"))
    return written
