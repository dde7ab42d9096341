"""A sheet: the content of the page for one result, whichever suite or harness wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paradecode_lab.measure.statistics import Interval

PLAIN = "plain"
"""Family of this package's plain decoding; it is grey everywhere."""


@dataclass(frozen=True)
class Line:
    """One decoder or engine.

    Attributes:
        family: lines of a family have one colour on the whole page.
        standing: ``exact``, ``law``, ``lossy``, ``broken`` (promised exactness, and differs), or
            empty if nothing was promised.
        badge: the standing in words with its numbers, such as ``exact 96/96``.
        speed: tokens a second.
        over: speed over the baseline's.
        quality: from 0 to 1; None where it was not measured.
        groups: kind of task -> speed, or speed over the baseline's if the sheet says so.
        acceptance: share of drafts whose token at position 1, 2, ... was kept.
        split: milliseconds a token by part.
        sweep: batch size -> tokens a second.
        sweep_over: batch size -> tokens a second over the baseline's.
        per_forward: tokens for each forward, where quality is drawn against it, too.
        by_parallelism: kind of task -> tokens a forward that decides, and the quality there; only
            of lines that differ in nothing but how much they decide at a time.
        cells: the line's cells in the table, without the name.
        charted: whether crowded charts, which show few lines, show it.
        muted: whether it is drawn pale, because it is a plain mode beside its faster one.
    """

    name: str
    family: str
    standing: str = ""
    badge: str = ""
    speed: Interval | None = None
    over: Interval | None = None
    quality: Interval | None = None
    groups: Mapping[str, Interval] = field(default_factory=dict)
    acceptance: tuple[float, ...] = ()
    split: Mapping[str, float] = field(default_factory=dict)
    sweep: Mapping[int, Interval] = field(default_factory=dict)
    sweep_over: Mapping[int, Interval] = field(default_factory=dict)
    per_forward: Interval | None = None
    by_parallelism: Mapping[str, tuple[Interval, Interval]] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    charted: bool = True
    muted: bool = False


@dataclass(frozen=True)
class Tile:
    """A number that sums a result up: its value, its meaning, and its evidence."""

    value: str
    label: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True)
class MoreFigures:
    """A further table: what it shows, the names of its columns, and its rows."""

    said: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """The sheet of one result.

    Attributes:
        conditions: (name, value) of model, machine and settings.
        baseline: the line that ``over`` refers to; empty for none.
        quality_label: meaning of ``quality``; empty if no line has any.
        groups_over: whether ``groups`` are relative to the baseline, and not speeds.
        head: names of the table's columns.
        notes: definitions, one in each paragraph.
        more: further tables.
        doubts: reasons why the figures may be wrong, one in each line; the terminal shows them,
            too.
    """

    title: str
    lines: tuple[Line, ...]
    conditions: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    baseline: str
    quality_label: str
    groups_over: bool
    head: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    more: tuple[MoreFigures, ...] = ()

    def by_speed(self) -> list[Line]:
        """Lines with a speed, the fastest first."""
        known = [line for line in self.lines if line.speed is not None]
        return sorted(known, key=lambda line: -line.speed.value if line.speed else 0.0)

    def table(self) -> tuple[tuple[str, ...], list[tuple[Line, tuple[str, ...]]]]:
        """The names and cells of the table, without empty columns, the fastest line first."""
        lines = self.by_speed()
        used = [n for n in range(len(self.head)) if any(line.cells[n] for line in lines)]
        rows = [(line, tuple(line.cells[n] for n in used)) for line in lines]
        return tuple(self.head[n] for n in used), rows

    @property
    def groups(self) -> list[str]:
        """All kinds of task, in the order of the first line that has them."""
        return list(dict.fromkeys(group for line in self.lines for group in line.groups))


STANDINGS = {
    "exact": "the tokens of plain decoding",
    "law": "the distribution of plain decoding",
    "lossy": "not plain decoding's output: read its quality beside its speed",
    "broken": "promised plain decoding's tokens, and gave others",
}
