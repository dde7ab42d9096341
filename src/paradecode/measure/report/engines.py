"""A result as files: JSON with aggregates, Markdown, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.measure.charts.all import charts_of
from paradecode.measure.charts.looks import looks_of
from paradecode.measure.charts.pictures import save_charts
from paradecode.measure.charts.style import can_draw
from paradecode.measure.report.from_results import sheet_of_results
from paradecode.measure.report.markdown import body
from paradecode.measure.result_files import write_results
from paradecode.measure.results import Results
from paradecode.measure.sheet import Sheet
from paradecode.measure.summary import EngineSummary, summarise


def write_report(results: Results, folder: Path, baseline: str | None = None) -> list[Path]:
    """Write ``results.json``, ``results.md`` and, where matplotlib is there, the pictures.

    Args:
        baseline: engine that speed-ups refer to; one that was not measured is left out.

    Returns:
        The files.
    """
    measured = {record.engine for record in results.records if not record.error}
    baseline = baseline if baseline in measured else None
    summaries = summarise(results, baseline)
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / "results.json", folder / "results.md"
    write_results(results, data, aggregates(summaries, baseline))
    sheet = sheet_of_results(results, baseline)
    text.write_text(body(sheet) + "\n", "utf-8")
    return [data, text, *_pictures(sheet, folder)]


def _pictures(sheet: Sheet, folder: Path) -> list[Path]:
    """Speed in all, and by kind of task."""
    if not can_draw():
        return []
    charts = charts_of(sheet, looks_of([sheet]))
    names = [name for name in ("speed", "groups") if name in charts]
    return [save_charts([charts[name]], folder / f"{name}.png") for name in names]


def aggregates(summaries: Sequence[EngineSummary], baseline: str | None) -> dict[str, Any]:
    """The figures of the tables, for programs."""
    entries = [{**asdict(summary), "engine": summary.engine.name} for summary in summaries]
    return {"baseline": baseline, "engines": entries}
