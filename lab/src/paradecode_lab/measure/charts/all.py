"""Lists the charts of a sheet in the order of the page."""

from __future__ import annotations

from paradecode_lab.measure.charts import bars, curves, frontier, groups, tasks
from paradecode_lab.measure.charts.chart import Chart, Looks
from paradecode_lab.measure.sheet import Sheet

CHARTS = {
    "speed": bars.speed,
    "frontier": frontier.draw,
    "groups": groups.draw,
    "tasks": tasks.draw,
    "acceptance": curves.acceptance,
    "sweep": curves.sweep,
    "split": bars.split,
}


def charts_of(sheet: Sheet, looks: Looks) -> dict[str, Chart]:
    """Return name -> chart for all charts for which the sheet has data."""
    drawn = {name: draw(sheet, looks) for name, draw in CHARTS.items()}
    return {name: chart for name, chart in drawn.items() if chart is not None}
