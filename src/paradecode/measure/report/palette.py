"""Colours that stay apart for colour-blind readers, in light and in dark (Okabe and Ito 2008)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paradecode.measure.report.sheet import PLAIN, Sheet

COLOURS = {
    # name: (light, dark)
    "paper": ("#ffffff", "#171a21"),
    "ink": ("#1d2130", "#e8eaf0"),
    "soft": ("#5c6275", "#a2a9bb"),
    "grid": ("#e2e5ec", "#2d323e"),
    "band": ("#f5f6f9", "#1d212a"),
    "good": ("#00795a", "#3cc79f"),
    "bad": ("#c0392b", "#ff7a6b"),
    "plain": ("#7d8497", "#8e96a8"),
    "c0": ("#d55e00", "#ff8a3d"),
    "c1": ("#0072b2", "#4aa8e8"),
    "c2": ("#009e73", "#2fc79b"),
    "c3": ("#cc79a7", "#e79cc5"),
    "c4": ("#b8860b", "#e8b93a"),
    "c5": ("#56b4e9", "#8bd0f7"),
    "c6": ("#5b4a9c", "#a293e6"),
    "c7": ("#8a4b2f", "#c98a6b"),
    "p0": ("#33415c", "#7f90b5"),
    "p1": ("#d55e00", "#ff8a3d"),
    "p2": ("#009e73", "#2fc79b"),
    "p3": ("#e2b100", "#f0cf4a"),
    "p4": ("#c3c8d4", "#4a5162"),
}
HUES = tuple(f"c{number}" for number in range(8))
SHAPES = ("circle", "square", "diamond", "triangle")
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 3), (8, 3, 2, 3))


@dataclass(frozen=True)
class Look:
    """How the marks of a line look; ``key`` is its number on the page."""

    colour: str
    shape: str
    dash: tuple[float, ...]
    key: int


def looks(sheets: Iterable[Sheet]) -> dict[tuple[str, str], Look]:
    """(family, name) -> look: a family has one colour, a line one key, on all sheets; the
    members of a family differ in shape and dashes."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    found: dict[tuple[str, str], Look] = {}
    for sheet in sheets:
        for line in sheet.lines:
            if (line.family, line.name) in found:
                continue
            if line.family != PLAIN:
                families.setdefault(line.family, len(families))
            hue, member = families.get(line.family, 0), members.get(line.family, 0)
            members[line.family] = member + 1
            found[line.family, line.name] = Look(
                PLAIN if line.family == PLAIN else HUES[hue % len(HUES)],
                SHAPES[(hue // len(HUES) + member) % len(SHAPES)],
                DASHES[member % len(DASHES)],
                len(found),
            )
    return found
