"""Speed by kind of task: dots with intervals."""

from __future__ import annotations

from paradecode.measure.report.axes import Scale, grid_x
from paradecode.measure.report.charts.frame import WIDTH, Looks, charted, look_of, said, tip
from paradecode.measure.report.drawing import Dot, Drawing, Rect, Stroke, Text, text_width
from paradecode.measure.report.palette import Look
from paradecode.measure.report.sheet import Line, Sheet

LEFT, RIGHT, MOST, STEP, LEGEND = 118.0, 24.0, 7, 8.0, 20.0


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None where nothing was measured by group."""
    lines = [line for line in charted(sheet.lines, MOST) if line.groups]
    if sheet.groups_over:
        lines = [line for line in lines if line.name != sheet.baseline]
    groups = sheet.groups
    if not lines or len(groups) < 2:
        return None
    row = STEP * len(lines) + 12
    names = _legend(lines)
    top = 14 + LEGEND * (names[-1][1] + 1)
    bottom = top + row * len(groups)
    unit = f"Times as fast as {sheet.baseline}" if sheet.groups_over else "Tokens per second"
    drawing = Drawing("Speed by kind of task", f"{unit}; whiskers are 95 % intervals.",
                      WIDTH, bottom + 24)  # fmt: skip
    found = [line.groups[group] for line in lines for group in groups if group in line.groups]
    low = min(each.low for each in found)
    start = max(0.0, low - 0.15) if sheet.groups_over and low > 0.3 else 0.0
    highest = min(max(each.high for each in found), 1.6 * max(each.value for each in found))
    scale = Scale(start, highest * 1.02, LEFT, WIDTH - RIGHT)
    for number in range(0, len(groups), 2):
        drawing.add(Rect(0, top + row * number, WIDTH, row, "band"))
    grid_x(drawing, scale, top, bottom)
    if sheet.groups_over and start < 1 < scale.high:
        drawing.add(Stroke(((scale(1), top), (scale(1), bottom)), "soft", 1.5))
    for number, group in enumerate(groups):
        middle = top + row * number + row / 2
        drawing.add(Text(LEFT - 12, middle + 4, group, 12.5, "end"))
        for place, line in enumerate(lines):
            if group in line.groups:
                y = middle + STEP * (place - (len(lines) - 1) / 2)
                _dot(drawing, line, group, look_of(line, looks), scale, y, sheet.groups_over)
    for line, (x, row_of_names) in zip(lines, names):
        look, y = look_of(line, looks), 14 + LEGEND * row_of_names
        drawing.add(
            Dot(x + 6, y, 4.5, look.colour, look.shape, line.muted, key=look.key),
            Text(x + 16, y + 4, line.name, 11.5, key=look.key),
        )
    return drawing


def _dot(
    drawing: Drawing, line: Line, group: str, look: Look, scale: Scale, y: float, over: bool
) -> None:
    each = line.groups[group]
    ends = scale(max(each.low, scale.low)), scale(min(each.high, scale.high))
    fact = f"{group}: {said(each, '×' if over else ' tokens/s')}"
    drawing.add(
        Stroke(((ends[0], y), (ends[1], y)), look.colour, 1.8, opacity=0.6, key=look.key),
        Dot(scale(each.value), y, 4.2, look.colour, look.shape, line.muted, tip(line, fact),
            look.key),
    )  # fmt: skip


def _legend(lines: list[Line]) -> list[tuple[float, int]]:
    """Place and row of each name above the chart."""
    x, row, found = 0.0, 0, []
    for line in lines:
        width = text_width(line.name, 11.5) + 30
        if x > 0 and x + width > WIDTH:
            x, row = 0.0, row + 1
        found.append((x, row))
        x += width
    return found
