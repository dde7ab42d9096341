"""A result as files: JSON with aggregates, Markdown, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.measure.charts.engines import draw_engines
from paradecode.measure.charts.style import can_draw
from paradecode.measure.markdown import report
from paradecode.measure.result_files import write_results
from paradecode.measure.results import Results
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
    text.write_text(report(results, summaries, baseline), "utf-8")
    drawn = draw_engines(results, summaries, baseline, folder) if can_draw() else []
    return [data, text, *drawn]


def aggregates(summaries: Sequence[EngineSummary], baseline: str | None) -> dict[str, Any]:
    """The figures of the tables, for programs."""
    entries = [{**asdict(summary), "engine": summary.engine.name} for summary in summaries]
    return {"baseline": baseline, "engines": entries}
