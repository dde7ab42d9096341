"""How the marks of a line look, the same on every chart of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paradecode.measure.charts.style import HUES, MARKERS, light
from paradecode.measure.sheet import PLAIN, Line, Sheet

DASHES = ("solid", (0, (4, 2)), (0, (1.5, 2)), (0, (5, 2, 1.5, 2)))


@dataclass(frozen=True)
class Look:
    """Name of the palette's colour, matplotlib's marker and dashes, and the line's number."""

    colour: str
    marker: str
    dashes: Any
    key: int

    @property
    def tint(self) -> str:
        """The colour on white."""
        return light(self.colour)


Looks = Mapping[tuple[str, str], Look]
"""(Family, name) of a line -> its look."""


def look_of(line: Line, looks: Looks) -> Look:
    """How the marks of a line look."""
    return looks[line.family, line.name]


def looks_of(sheets: Iterable[Sheet]) -> Looks:
    """A family has one colour and a line one key on all sheets; the members of a family differ in
    marker and dashes."""
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
