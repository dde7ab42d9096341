"""A drawing is a list of shapes in pixels. Painters make SVG or PNG of it, so each chart is drawn
by one piece of code. Colours are names of the palette, not values: a page may be light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """A filled rectangle. ``key`` joins the marks of one line, ``tip`` shows on hover."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    tip: str = ""
    key: int | None = None
    opacity: float = 1.0
    radius: float = 0.0


@dataclass(frozen=True)
class Stroke:
    """A polyline; with ``fill`` a polygon without an outline."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.0
    dash: tuple[float, ...] = ()
    fill: bool = False
    opacity: float = 1.0
    key: int | None = None


@dataclass(frozen=True)
class Dot:
    """A marker around a centre: ``circle``, ``square``, ``diamond`` or ``triangle``."""

    x: float
    y: float
    radius: float
    colour: str
    shape: str = "circle"
    hollow: bool = False
    tip: str = ""
    key: int | None = None


@dataclass(frozen=True)
class Text:
    """Words whose baseline starts, ends or is centred at (x, y); ``anchor`` as in SVG. A ``halo``
    keeps them readable on top of lines.
    """

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    colour: str = "ink"
    bold: bool = False
    tip: str = ""
    key: int | None = None
    halo: bool = False


Shape = Union[Rect, Stroke, Dot, Text]


@dataclass
class Drawing:
    """A chart: what it is called, what to know about it, and its shapes."""

    title: str
    subtitle: str
    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes


def outline(dot: Dot) -> list[Point]:
    """Corners of a marker that is not a circle; all shapes have about the same area."""
    x, y, r = dot.x, dot.y, dot.radius
    if dot.shape == "square":
        s = 0.88 * r
        return [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
    if dot.shape == "diamond":
        s = 1.25 * r
        return [(x, y - s), (x + s, y), (x, y + s), (x - s, y)]
    s = 1.3 * r
    return [(x, y - s), (x + 0.95 * s, y + 0.65 * s), (x - 0.95 * s, y + 0.65 * s)]


def text_width(text: str, size: float = 12.0, bold: bool = False) -> float:
    """About how wide a text is, in pixels: fonts are the reader's; this is a wide one."""
    narrow = sum(letter in "ijl.,:;|!()[]' t" for letter in text)
    wide = sum(letter in "mwMW%@×" for letter in text)
    ems = 0.61 * (len(text) - narrow - wide) + 0.34 * narrow + 0.92 * wide
    return size * ems * (1.09 if bold else 1.0)


def shortened(text: str, room: float, size: float = 12.0) -> str:
    """The text, its end cut off where it needs more than ``room`` pixels."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, room: float, size: float = 12.0) -> list[str]:
    """The text in lines of at most ``room`` pixels, as far as its words are shorter."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else ""
        if longer and text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least ``gap`` apart, inside of a range."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = [wanted[index] for index in order]
    for _ in range(200):
        moved = False
        for upper in range(1, len(places)):
            short = gap - (places[upper] - places[upper - 1])
            if short > 0.01:
                places[upper - 1] -= short / 2
                places[upper] += short / 2
                moved = True
        places = [min(max(place, low), high) for place in places]
        if not moved:
            break
    found = [0.0] * len(wanted)
    for index, place in zip(order, places):
        found[index] = place
    return found
