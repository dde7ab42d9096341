"""Speed against quality: what is bought with what."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.report.axes import Scale, grid_x, grid_y
from paradecode.measure.report.charts.frame import WIDTH, Looks, look_of, said, tip
from paradecode.measure.report.drawing import Dot, Drawing, Stroke, Text, text_width
from paradecode.measure.report.palette import Look
from paradecode.measure.report.sheet import Line, Sheet
from paradecode.measure.statistics import frontier

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 430.0, 62.0, 34.0, 34.0, 54.0
WIDE = 10.0
"""From a ratio of the fastest to the slowest this large, the axis is logarithmic."""
MOST_LABELS = 16
LEAST = 0.002
"""Of quality: a smaller difference is not worth a picture."""
Box = tuple[float, float, float, float]


def draw(sheet: Sheet, looks: Looks) -> Drawing | None:
    """None where no line has both a speed and less quality than another."""
    lines = [line for line in sheet.by_speed() if line.quality is not None]
    if len(lines) < 2 or not _trades(lines):
        return None
    drawing = Drawing(
        "Quality against speed",
        f"{sheet.quality_label}. Up and to the right is better; the line joins what nothing beats.",
        WIDTH, HEIGHT,
    )  # fmt: skip
    across, up = _scales(lines)
    bottom = HEIGHT - BOTTOM
    grid_y(drawing, up, LEFT, WIDTH - RIGHT, lambda value: f"{100 * value:.10g} %")
    grid_x(drawing, across, TOP, bottom)
    drawing.add(Text(WIDTH - RIGHT, HEIGHT - 14, "tokens per second →", 11.5, "end", "soft"))
    places = [(across(_speed(line)), up(_quality(line))) for line in lines]
    best = frontier([(_speed(line), _quality(line)) for line in lines])
    drawing.add(Stroke(tuple(places[index] for index in best), "ink", 1.3, (4, 4), opacity=0.6))
    for line, (x, y) in zip(lines, places):
        _point(drawing, line, look_of(line, looks), x, y, across, up)
    order = [*best, *(n for n in range(len(lines)) if n not in best)][:MOST_LABELS]
    taken = [box for line in lines for box in _boxes(line, across, up)]
    _labels(drawing, [lines[n] for n in order], [places[n] for n in order], looks, taken)
    return drawing


def _trades(lines: Sequence[Line]) -> bool:
    """Whether any quality was given up at all."""
    qualities = [_quality(line) for line in lines]
    return max(qualities) - min(qualities) > LEAST


def _scales(lines: Sequence[Line]) -> tuple[Scale, Scale]:
    speeds = [line.speed for line in lines if line.speed]
    qualities = [line.quality for line in lines if line.quality]
    slow, fast = min(s.low for s in speeds), max(s.high for s in speeds)
    log = slow > 0 and fast / slow > WIDE
    across = Scale(slow / 1.2 if log else 0.0, fast * (1.2 if log else 1.04), LEFT, WIDTH - RIGHT,
                   log)  # fmt: skip
    worst = min(max(q.low, q.value - 0.15) for q in qualities)
    top = max(q.high for q in qualities)
    low = max(0.0, min(worst - 0.05 * (top - worst), top - 0.1))
    return across, Scale(low, top + 0.04 * (top - low), HEIGHT - BOTTOM, TOP)


def _point(
    drawing: Drawing, line: Line, look: Look, x: float, y: float, across: Scale, up: Scale
) -> None:
    assert line.speed is not None
    assert line.quality is not None
    speed, quality = line.speed, line.quality
    for points in (
        ((across(speed.low), y), (across(speed.high), y)),
        ((x, up(max(quality.low, up.low))), (x, up(min(quality.high, up.high)))),
    ):
        drawing.add(Stroke(points, look.colour, 1.4, opacity=0.55, key=look.key))
    facts = said(speed, " tokens/s"), f"quality {said(quality, ' %', 100)}"
    drawing.add(Dot(x, y, 6, look.colour, look.shape, line.muted, tip(line, *facts), look.key))


def _boxes(line: Line, across: Scale, up: Scale) -> list[Box]:
    """What a point and its whiskers cover."""
    assert line.speed is not None
    assert line.quality is not None
    x, y = across(line.speed.value), up(line.quality.value)
    low, high = up(max(line.quality.low, up.low)), up(min(line.quality.high, up.high))
    return [
        (x - 7, y - 7, x + 7, y + 7),
        (across(line.speed.low), y - 1, across(line.speed.high), y + 1),
        (x - 1, high, x + 1, low),
    ]


def _labels(
    drawing: Drawing, lines: Sequence[Line], at: Sequence[tuple[float, float]], looks: Looks,
    taken: list[Box],
) -> None:  # fmt: skip
    """Names beside their points where there is room; the others show on hover."""
    for line, (x, y) in zip(lines, at):
        width = text_width(line.name, 11.5)
        for dx, dy, anchor in _spots():
            left = x + dx - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (left - 2, y + dy - 11, left + width + 2, y + dy + 4)
            inside = box[0] > LEFT and box[2] < WIDTH - 4 and box[1] > 2 and box[3] < HEIGHT - 46
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                key = look_of(line, looks).key
                if abs(dy - 4) > 22:
                    end = y + dy + (5 if dy < 0 else -12)
                    drawing.add(
                        Stroke(((x, y), (x + dx / 2, end)), "soft", 0.8, opacity=0.6, key=key)
                    )
                drawing.add(Text(x + dx, y + dy, line.name, 11.5, anchor, key=key, halo=True))
                break


def _spots() -> list[tuple[float, float, str]]:
    """Where a name may stand, the best first: beside, above, below, and further off."""
    near = [
        (11.0, 4.0, "start"),
        (-11.0, 4.0, "end"),
        (0.0, -13.0, "middle"),
        (0.0, 22.0, "middle"),
    ]
    far = [
        (dx, dy, "middle")
        for step in range(2, 9)
        for dy in (4.0 + 17 * step, -13.0 - 17 * (step - 1))
        for dx in (0.0, 36.0, -36.0, 72.0, -72.0)
    ]
    return [*near, *far]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _speed(line: Line) -> float:
    return line.speed.value if line.speed else 0.0


def _quality(line: Line) -> float:
    return line.quality.value if line.quality else 0.0
