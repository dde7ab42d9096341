"""A chart, and what all charts of a sheet share: marks, names, and the looks of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode_lab.measure.charts.style import HUES, MARKERS, SMALL, light
from paradecode_lab.measure.sheet import PLAIN, Line, Sheet
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import spread

DASHES = ("solid", (0, (4, 2)), (0, (1.5, 2)), (0, (5, 2, 1.5, 2)))


@dataclass(frozen=True)
class Look:
    """The look of a line in all charts.

    Attributes:
        colour: name of a colour of the palette.
        marker, dashes: matplotlib's marker and dash pattern.
        key: number of the line, which joins its marks on all charts.
    """

    colour: str
    marker: str
    dashes: Any
    key: int

    @property
    def tint(self) -> str:
        """The colour as it is drawn on a white background."""
        return light(self.colour)


Looks = Mapping[tuple[str, str], Look]
"""Maps (family, name) of a line to its look."""


def look_of(line: Line, looks: Looks) -> Look:
    """Return the look of a line."""
    return looks[line.family, line.name]


def looks_of(sheets: Iterable[Sheet]) -> Looks:
    """Give each line its look.

    On all sheets a family has the same colour, and a line the same key. Lines of one family differ
    in marker and dashes.
    """
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    found: dict[tuple[str, str], Look] = {}
    for line in (line for sheet in sheets for line in sheet.lines):
        if (line.family, line.name) in found:
            continue
        if line.family != PLAIN:
            families.setdefault(line.family, len(families))
        hue, member = families.get(line.family, 0), members.get(line.family, 0)
        members[line.family] = member + 1
        found[line.family, line.name] = Look(
            PLAIN if line.family == PLAIN else HUES[hue % len(HUES)],
            MARKERS[(hue // len(HUES) + member) % len(MARKERS)],
            DASHES[member % len(DASHES)],
            len(found),
        )
    return found


WIDTH = 7.9
"""Width in inches of every chart of a page."""

LONGEST_NAME = 42
"""Number of letters of a name that are shown beside a mark. Longer names are cut."""


@dataclass(frozen=True)
class Chart:
    """A picture that is drawn when it is needed.

    Attributes:
        title, subtitle: texts above the chart, which ``paint`` does not draw.
        height: height in inches.
        paint: function that draws on a figure or subfigure of matplotlib.
    """

    title: str
    subtitle: str
    height: float
    paint: Callable[[Any], None]


def mark(artist: Any, look: Look, tip: str = "") -> None:
    """Write the key of a line and a hover text into the id of an artist (see :mod:`.svg`)."""
    artist.set_gid(f"k{look.key}|" + tip.replace("\n", "|"))


def tip_of(line: Line, *facts: str) -> str:
    """Return the hover text of a line: its name, its standing, and further facts."""
    return "\n".join([line.name, *([line.badge] if line.badge else []), *facts])


def said(found: Interval | None, unit: str = "") -> str:
    """Format an interval as a text such as ``470 tokens/s (459 to 481)``."""
    return spread(found, unit, "not measured")


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """Return the name, cut at its end if it has more than ``most`` letters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def charted(lines: Sequence[Line], most: int) -> list[Line]:
    """Return the lines that a crowded chart shows: plain lines, and the fastest of the others."""
    ranked = sorted(
        (line for line in lines if line.charted),
        key=lambda line: (not line.muted, -(line.speed.value if line.speed else 0.0)),
    )
    kept = ranked[:most]
    return [line for line in lines if line in kept]


def whisker(axes: Any, found: Interval, y: float, look: Look, colour: str = "ink") -> None:
    """Draw a 95 % interval as a horizontal whisker; nothing if the interval has no width."""
    if found.low < found.high:
        (bar,) = axes.plot((found.low, found.high), (y, y), color=light(colour), linewidth=1,
                           marker="|", markersize=5, alpha=0.75)  # fmt: skip
        mark(bar, look)


def name_rows(axes: Any, lines: Sequence[Line], looks: Looks) -> None:
    """Give each line a row of the vertical axis, from the top, with its name at the left."""
    axes.set_yticks(range(len(lines)), [shortened(line.name) for line in lines])
    axes.set_ylim(len(lines) - 0.45, -0.6)
    for label, line in zip(axes.get_yticklabels(), lines):
        label.set_color(light("soft" if line.muted else "ink"))
        mark(label, look_of(line, looks), tip_of(line))


def name_ends(
    axes: Any, ends: Sequence[tuple[Line, tuple[float, float]]], looks: Looks, gap: float
) -> None:
    """Write each name near the end of its curve instead of in a legend; names do not overlap.

    Args:
        ends: each line with the last point of its curve.
        gap: the least distance between two names, in units of the vertical axis.
    """
    low, high = axes.get_ylim()
    places = spread_out([y for _, (_, y) in ends], gap, low, high)
    for (line, end), y in zip(ends, places):
        look = look_of(line, looks)
        label = axes.annotate(
            shortened(line.name, 30), end, (1.03, y), textcoords=axes.get_yaxis_transform(),
            va="center", color=look.tint, fontweight="bold", fontsize=SMALL,
            arrowprops={"arrowstyle": "-", "color": look.tint, "linewidth": 0.8,
                        "linestyle": ":", "shrinkA": 2, "shrinkB": 4},
        )  # fmt: skip
        mark(label, look, tip_of(line))


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places near the wanted ones, in their order and range, at least ``gap`` apart."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = [0.0] * len(wanted)
    least = low
    for index in order:
        places[index] = max(wanted[index], least)
        least = places[index] + gap
    most = high
    for index in reversed(order):
        places[index] = min(places[index], most)
        most = places[index] - gap
    return places
