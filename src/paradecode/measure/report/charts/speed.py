"""Decode speed of every line: bars with intervals."""

from __future__ import annotations

from paradecode.measure.report.axes import Scale, grid_x
from paradecode.measure.report.charts.frame import WIDTH, Looks, look_of, said, tip, whisker_x
from paradecode.measure.report.drawing import Drawing, Rect, Text, shortened, text_width
from paradecode.measure.report.sheet import Line, Sheet
from paradecode.measure.tables import number

ROW, LEFT, RIGHT, MOST = 27.0, 286.0, 176.0, 30


def _mark(line: Line) -> str:
    """What must stand beside a speed that is not plain decoding's output."""
    if line.standing == "broken":
        return "≠ plain"
    if line.standing != "lossy":
        return ""
    return f"lossy, {100 * line.quality.value:.0f} %" if line.quality else "lossy"


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None without a speed."""
    ranked = sheet.by_speed()
    lines = ranked[:MOST]
    if not lines:
        return None
    bottom = ROW * len(lines) + 6
    against = f" × is against {sheet.baseline}." if sheet.baseline else ""
    if any(line.standing == "lossy" and line.quality for line in lines):
        against += f" Beside lossy: {sheet.quality_label[0].lower()}{sheet.quality_label[1:]}."
    against += f" The {MOST} fastest of {len(ranked)}." if len(ranked) > MOST else ""
    drawing = Drawing(
        "Decode speed", f"Tokens per second; whiskers are 95 % intervals.{against}",
        WIDTH, bottom + 24,
    )  # fmt: skip
    highest = max(line.speed.high for line in lines if line.speed)
    scale = Scale(0.0, highest * 1.01, LEFT, WIDTH - RIGHT)
    grid_x(drawing, scale, 0, bottom)
    for row, line in enumerate(lines):
        assert line.speed is not None
        look, middle = look_of(line, looks), ROW * row + ROW / 2 + 3
        facts = said(line.speed, " tokens/s"), f"{said(line.over, '×')} {sheet.baseline}"
        label = shortened(line.name, LEFT - 14, 12.5)
        drawing.add(
            Text(LEFT - 10, middle + 4, label, 12.5, "end", "soft" if line.muted else "ink",
                 key=look.key, tip=tip(line)),
            Rect(LEFT, middle - 9, scale(line.speed.value) - LEFT, 18, look.colour,
                 tip(line, *facts), look.key, 0.5 if line.muted else 1.0, 2),
        )  # fmt: skip
        whisker_x(drawing, line.speed, scale, middle, look.key)
        at, value = scale(line.speed.high) + 8, number(line.speed.value)
        drawing.add(Text(at, middle + 4, value, 12.5, bold=True, key=look.key))
        at += text_width(value, 12.5, bold=True) + 8
        if line.over is not None and line.name != sheet.baseline:
            ratio = f"{number(line.over.value)}×"
            drawing.add(Text(at, middle + 4, ratio, 12.5, colour="soft", key=look.key))
            at += text_width(ratio, 12.5) + 8
        mark = _mark(line)
        if mark:
            drawing.add(Text(at, middle + 4, mark, 11.5, colour="bad", bold=True, key=look.key))
    return drawing
