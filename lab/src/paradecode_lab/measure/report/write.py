"""Writes results and sheets as files: JSON, a page, pictures, Markdown, or a folder with all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.charts.all import charts_of
from paradecode_lab.measure.charts.chart import looks_of
from paradecode_lab.measure.charts.pictures import save_charts
from paradecode_lab.measure.charts.style import can_draw
from paradecode_lab.measure.figures import aggregates, figures
from paradecode_lab.measure.report.from_results import sheet_of_results
from paradecode_lab.measure.report.markdown import body, markdown
from paradecode_lab.measure.report.page import page
from paradecode_lab.measure.result_files import write_results
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.sheet import Sheet

SUFFIXES = (".html", ".md", ".png")


def check_output(output: Path) -> None:
    """Check that ``output`` can be written; raises InvalidInput if it cannot."""
    if output.suffix not in (*SUFFIXES, "") and not output.is_dir():
        raise InvalidInput("output", str(output), f"name a folder, or {', '.join(SUFFIXES)}")
    if not output.absolute().parent.is_dir():
        raise InvalidInput("output", str(output), "name something in a folder that exists")


def write_report(sheets: Sequence[Sheet], output: Path) -> list[Path]:
    """Write the sheets as a ``.html``, ``.md`` or ``.png`` file, or as a folder with all of them.

    In a folder each chart is a separate picture. Without matplotlib there are no pictures.

    Raises:
        InvalidInput: ``output`` has another suffix, or it is a ``.png`` and matplotlib is not
            installed.
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


def write_run(results: Results, folder: Path, baseline: str | None = None) -> list[Path]:
    """Write ``results.json``, ``results.md`` and, if matplotlib is installed, two pictures.

    Args:
        baseline: engine that speed-ups refer to; it is ignored if it was not measured.

    Returns:
        The paths of the written files.
    """
    measured = {record.engine for record in results.records if not record.error}
    baseline = baseline if baseline in measured else None
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / "results.json", folder / "results.md"
    write_results(results, data, aggregates(figures(results, baseline), baseline))
    sheet = sheet_of_results(results, baseline)
    text.write_text(body(sheet) + "\n", "utf-8")
    paths = {name: folder / f"{name}.png" for name in ("speed", "groups")}
    return [data, text, *_pictures(sheet, paths)]


def write_beside(sheet: Sheet, output: Path, charts: Sequence[str] = ()) -> list[Path]:
    """Write Markdown, a page and pictures next to a result's file.

    Returns:
        The paths of the written files; without matplotlib there are no pictures.
    """
    written = [write_report([sheet], output.with_suffix(suffix))[0] for suffix in (".md", ".html")]
    paths = {name: output.with_name(f"{output.stem}-{name}.png") for name in charts}
    return [*written, *_pictures(sheet, paths)]


def _pictures(sheet: Sheet, paths: Mapping[str, Path]) -> list[Path]:
    """Save the charts that the sheet has data for, and return their paths.

    Without matplotlib there are none.
    """
    charts = charts_of(sheet, looks_of([sheet])) if paths and can_draw() else {}
    return [save_charts([charts[name]], path) for name, path in paths.items() if name in charts]


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
