"""The charts of a sheet, in the order of the page."""

from __future__ import annotations

from paradecode.measure.report.charts import acceptance, frontier, groups, speed, split, sweep
from paradecode.measure.report.charts.frame import Looks
from paradecode.measure.report.drawing import Drawing
from paradecode.measure.report.sheet import Sheet

CHARTS = {
    "speed": speed.draw,
    "frontier": frontier.draw,
    "groups": groups.draw,
    "acceptance": acceptance.draw,
    "sweep": sweep.draw,
    "split": split.draw,
}


def draw_all(sheet: Sheet, looks: Looks) -> dict[str, Drawing]:
    """Name -> chart, of those that the sheet has data for."""
    drawn = {name: draw(sheet, looks) for name, draw in CHARTS.items()}
    return {name: drawing for name, drawing in drawn.items() if drawing is not None}
