"""How far down drafts are right."""

from __future__ import annotations

from paradecode.measure.report.axes import Scale, grid_y
from paradecode.measure.report.charts.frame import WIDTH, Looks, charted, look_of, tip
from paradecode.measure.report.charts.names import end_labels
from paradecode.measure.report.drawing import Dot, Drawing, Stroke, Text
from paradecode.measure.report.sheet import Sheet

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330.0, 56.0, 260.0, 12.0, 46.0
MOST, DEEPEST = 8, 16


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None where nothing drafts."""
    lines = [line for line in charted(sheet.lines, MOST + 1) if line.acceptance]
    if not lines:
        return None
    deepest = min(DEEPEST, max(len(line.acceptance) for line in lines))
    drawing = Drawing(
        "Acceptance by position",
        "Share of drafts whose token at this position was kept; shorter drafts count as not kept.",
        WIDTH, HEIGHT,
    )  # fmt: skip
    bottom = HEIGHT - BOTTOM
    across = Scale(1.0, float(max(deepest, 2)), LEFT, WIDTH - RIGHT)
    up = Scale(0.0, 1.0, bottom, TOP)
    grid_y(drawing, up, LEFT, WIDTH - RIGHT, lambda value: f"{100 * value:.0f} %")
    for position in range(1, deepest + 1):
        drawing.add(Text(across(position), bottom + 17, str(position), 11, "middle", "soft"))
    drawing.add(
        Text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "position in the draft", 11.5, "middle",
             "soft")
    )  # fmt: skip
    ends = []
    for line in lines:
        look = look_of(line, looks)
        shares = line.acceptance[:deepest]
        points = tuple((across(n), up(share)) for n, share in enumerate(shares, 1))
        drawing.add(Stroke(points, look.colour, 2.2, look.dash, key=look.key))
        for number, ((x, y), share) in enumerate(zip(points, shares), 1):
            fact = f"position {number}: {100 * share:.1f} % kept"
            drawing.add(Dot(x, y, 3.4, look.colour, look.shape, tip=tip(line, fact), key=look.key))
        ends.append((line, points[-1]))
    end_labels(drawing, ends, looks, WIDTH - RIGHT + 12, TOP, bottom)
    return drawing
