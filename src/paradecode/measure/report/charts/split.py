"""Where the time of a token goes."""

from __future__ import annotations

from paradecode.measure.figures import PARTS
from paradecode.measure.report.axes import Scale, grid_x
from paradecode.measure.report.charts.frame import WIDTH, Looks, look_of, tip
from paradecode.measure.report.drawing import Drawing, Rect, Text, shortened, text_width
from paradecode.measure.report.sheet import Sheet
from paradecode.measure.tables import number

ROW, LEFT, RIGHT, TOP, MOST = 27.0, 262.0, 70.0, 32.0, 30


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None where times were not split."""
    lines = [line for line in sheet.by_speed() if line.split][:MOST]
    if not lines:
        return None
    bottom = TOP + ROW * len(lines) + 4
    drawing = Drawing("Where the time goes", "Milliseconds of decoding a token; shorter is faster.",
                      WIDTH, bottom + 24)  # fmt: skip
    scale = Scale(0.0, max(sum(line.split.values()) for line in lines), LEFT, WIDTH - RIGHT)
    grid_x(drawing, scale, TOP, bottom)
    x = LEFT
    for place, part in enumerate(PARTS):
        drawing.add(Rect(x, 7, 11, 11, f"p{place}", radius=2), Text(x + 16, 17, part, 12))
        x += text_width(part, 12) + 40
    for row, line in enumerate(lines):
        look, middle = look_of(line, looks), TOP + ROW * row + ROW / 2 + 2
        label = shortened(line.name, LEFT - 14, 12.5)
        drawing.add(Text(LEFT - 10, middle + 4, label, 12.5, "end", key=look.key, tip=tip(line)))
        total, spent = sum(line.split.values()), 0.0
        for place, part in enumerate(PARTS):
            own = line.split.get(part, 0.0)
            fact = f"{part}: {number(own)} ms a token, {100 * own / max(total, 1e-12):.0f} %"
            start, end = scale(spent), scale(spent + own)
            drawing.add(Rect(start, middle - 9, end - start, 18, f"p{place}", tip(line, fact),
                             look.key))  # fmt: skip
            spent += own
        drawing.add(
            Text(scale(total) + 8, middle + 4, f"{number(total)} ms", 12.5, bold=True, key=look.key)
        )
    return drawing
