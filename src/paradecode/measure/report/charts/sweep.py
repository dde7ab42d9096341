"""What is left of a method's gain as the batch grows."""

from __future__ import annotations

from paradecode.measure.report.axes import Scale, grid_y
from paradecode.measure.report.charts.frame import WIDTH, Looks, charted, look_of, said, tip
from paradecode.measure.report.charts.names import end_labels
from paradecode.measure.report.drawing import Dot, Drawing, Stroke, Text
from paradecode.measure.report.sheet import Sheet

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330.0, 62.0, 260.0, 12.0, 46.0
MOST = 8


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None where there was one batch size only."""
    lines = [line for line in charted(sheet.lines, MOST) if line.sweep_over]
    sizes = sorted({size for line in lines for size in line.sweep_over})
    if len(sizes) < 2:
        return None
    drawing = Drawing(
        "Gain by batch size",
        f"Throughput over that of {sheet.baseline} at the same size, prompts included; bands are "
        "95 % intervals.", WIDTH, HEIGHT,
    )  # fmt: skip
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    step = (right - LEFT - 24) / (len(sizes) - 1)
    at = {size: LEFT + 12 + step * number for number, size in enumerate(sizes)}
    found = [each for line in lines for each in line.sweep_over.values()]
    low = min(0.8, min(each.low for each in found))
    up = Scale(low, max(1.2, max(each.high for each in found)), bottom, TOP)
    grid_y(drawing, up, LEFT, right, lambda value: f"{value:.10g}×")
    drawing.add(Stroke(((LEFT, up(1)), (right, up(1))), "soft", 1.5))
    for size in sizes:
        drawing.add(Text(at[size], bottom + 17, str(size), 11, "middle", "soft"))
    drawing.add(Text((LEFT + right) / 2, HEIGHT - 10, "requests at a time", 11.5, "middle", "soft"))
    ends = []
    for line in lines:
        look = look_of(line, looks)
        own = sorted(line.sweep_over.items())
        band = [(at[size], up(each.high)) for size, each in own]
        band += [(at[size], up(each.low)) for size, each in reversed(own)]
        points = tuple((at[size], up(each.value)) for size, each in own)
        drawing.add(
            Stroke(tuple(band), look.colour, fill=True, opacity=0.1, key=look.key),
            Stroke(points, look.colour, 2.2, look.dash, key=look.key),
        )
        for (size, each), (x, y) in zip(own, points):
            facts = (
                f"batch {size}: {said(each, '×')} {sheet.baseline}",
                said(line.sweep.get(size), " tokens/s"),
            )
            drawing.add(Dot(x, y, 4, look.colour, look.shape, tip=tip(line, *facts), key=look.key))
        ends.append((line, points[-1]))
    end_labels(drawing, ends, looks, right + 12, TOP, bottom)
    return drawing
