"""The charts of a sheet, in the order of the page."""

from __future__ import annotations

from paradecode.measure.charts import acceptance, frontier, groups, speed, split, sweep
from paradecode.measure.charts.chart import Chart
from paradecode.measure.charts.looks import Looks
from paradecode.measure.sheet import Sheet

CHARTS = {
    "speed": speed.draw,
    "frontier": frontier.draw,
    "groups": groups.draw,
    "acceptance": acceptance.draw,
    "sweep": sweep.draw,
    "split": split.draw,
}


def charts_of(sheet: Sheet, looks: Looks) -> dict[str, Chart]:
    """Name -> chart, of those that the sheet has data for."""
    drawn = {name: draw(sheet, looks) for name, draw in CHARTS.items()}
    return {name: chart for name, chart in drawn.items() if chart is not None}
