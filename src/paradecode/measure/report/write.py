"""Sheets as files: a page, pictures, Markdown, or all of them in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.measure.report.charts.all import draw_all
from paradecode.measure.report.markdown import markdown
from paradecode.measure.report.page import page
from paradecode.measure.report.palette import looks
from paradecode.measure.report.png import save
from paradecode.measure.report.sheet import Sheet

SUFFIXES = (".html", ".md", ".png")


def check_output(output: Path) -> None:
    """Raise InvalidInput for a target that cannot be written."""
    if output.suffix not in (*SUFFIXES, "") and not output.is_dir():
        raise InvalidInput("output", str(output), f"name a folder, or {', '.join(SUFFIXES)}")
    if not output.absolute().parent.is_dir():
        raise InvalidInput("output", str(output), "name something in a folder that exists")


def write_report(sheets: Sequence[Sheet], output: Path) -> list[Path]:
    """Write a ``.html``, ``.md`` or ``.png`` file, or a folder with all of them.

    In a folder each chart is a picture of its own.

    Raises:
        InvalidInput: another kind of file, or pictures without matplotlib.
    """
    check_output(output)
    if output.suffix == ".html":
        output.write_text(page(sheets), "utf-8")
    elif output.suffix == ".md":
        output.write_text(markdown(sheets), "utf-8")
    elif output.suffix == ".png":
        found = looks(sheets)
        drawings = [d for sheet in sheets for d in draw_all(sheet, found).values()]
        save(drawings, output, sheets[0].title if len(sheets) == 1 else "Paradecode benchmarks")
    else:
        return _folder(sheets, output)
    return [output]


def _folder(sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "report.html").write_text(page(sheets), "utf-8")
    (folder / "report.md").write_text(markdown(sheets), "utf-8")
    written = [folder / "report.html", folder / "report.md"]
    found = looks(sheets)
    for number, sheet in enumerate(sheets, 1):
        for name, drawing in draw_all(sheet, found).items():
            stem = name if len(sheets) == 1 else f"{number}-{name}"
            written.append(folder / f"{stem}.png")
            save([drawing], written[-1])
    return written
