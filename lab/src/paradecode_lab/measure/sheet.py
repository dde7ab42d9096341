"""The content of the page about one result, independent of the suite or program that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paradecode_lab.measure.statistics import Interval

PLAIN = "plain"
"""Family of this package's plain decoding, which is grey in all charts."""


@dataclass(frozen=True)
class Line:
    """The page's row for one decoder or engine.

    Attributes:
        family: lines of one family have the same colour on the whole page.
        standing: how its output compares with plain decoding: ``exact``, ``law``, ``lossy``,
            ``broken`` (it promised the same tokens, and gave others), or empty if nothing was
            promised.
        badge: the standing in words and numbers, such as ``exact 96/96``.
        speed: tokens a second.
        over: speed over the baseline's.
        quality: from 0 to 1; None where it was not measured.
        groups: kind of task -> speed; it is relative to the baseline if the sheet's ``groups_over``
            is true.
        acceptance: share of drafts whose token at position 1, 2, ... was accepted.
        split: milliseconds per token, divided into drafting, forwards and so on.
        sweep: batch size -> tokens a second.
        sweep_over: batch size -> tokens a second over the baseline's.
        per_forward: tokens per forward; None if quality is not drawn against it.
        by_parallelism: kind of task -> (tokens per deciding forward, quality). Only lines that
            differ in nothing but how many tokens they decide at once have it.
        cells: the line's cells in the table, without the name.
        charted: whether the line is also shown in crowded charts, which show few lines.
        muted: whether the line is drawn pale, because a faster mode of the same engine stands
            beside it.
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
    """A number that sums up a result.

    Attributes:
        value: the number as a text.
        label: what the number means.
        note: the evidence for it.
        bad: whether it is bad news, and is marked.
    """

    value: str
    label: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True)
class MoreFigures:
    """A further table: a sentence on what it shows, the names of its columns, and its rows."""

    said: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """The content of the page about one result.

    Attributes:
        conditions: (name, value) for the model, the machine and the settings.
        baseline: name of the line that ``over`` refers to; empty for none.
        quality_label: what ``quality`` measures; empty if no line has any.
        groups_over: whether ``groups`` are relative to the baseline, and not speeds.
        head: names of the table's columns.
        notes: definitions, one in each paragraph.
        more: further tables.
        doubts: reasons why the figures may be wrong, one in each line. The terminal shows them as
            well.
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
        """Return the lines that have a speed, the fastest first."""
        known = [line for line in self.lines if line.speed is not None]
        return sorted(known, key=lambda line: -line.speed.value if line.speed else 0.0)

    def table(self) -> tuple[tuple[str, ...], list[tuple[Line, tuple[str, ...]]]]:
        """Return the table's column names, and its lines with their cells, the fastest line first.

        Columns whose cells are all empty are left out.
        """
        lines = self.by_speed()
        used = [n for n in range(len(self.head)) if any(line.cells[n] for line in lines)]
        rows = [(line, tuple(line.cells[n] for n in used)) for line in lines]
        return tuple(self.head[n] for n in used), rows

    @property
    def groups(self) -> list[str]:
        """All kinds of task, in the order in which the lines name them."""
        return list(dict.fromkeys(group for line in self.lines for group in line.groups))


STANDINGS = {
    "exact": "the tokens of plain decoding",
    "law": "the distribution of plain decoding",
    "lossy": "not plain decoding's output: read its quality beside its speed",
    "broken": "promised plain decoding's tokens, and gave others",
}
