"""What the page shows of a result, whichever suite or harness wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paradecode_lab.measure.statistics import Interval

PLAIN = "plain"
"""Family of plain decoding of this package; it is grey everywhere."""


@dataclass(frozen=True)
class Line:
    """One decoder or engine.

    Attributes:
        family: lines of a family have one colour on the whole page.
        standing: ``exact``, ``law``, ``lossy``, ``broken`` (promised exactness, and differs), or
            empty where nothing was promised.
        badge: the same in words with its numbers, such as ``exact 96/96``.
        speed: tokens a second.
        over: times as fast as the sheet's baseline.
        quality: from 0 to 1; None where it was not measured.
        groups: kind of task -> speed, or times as fast, as the sheet says.
        acceptance: share of drafts whose token at position 1, 2, ... was kept.
        split: milliseconds a token by part.
        sweep: batch size -> tokens a second; ``sweep_over`` the same over the baseline.
        cells: of the table, without the name.
        charted: whether it is among the few that crowded charts show.
        muted: drawn pale: a plain mode beside its faster one.
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
    cells: tuple[str, ...] = ()
    charted: bool = True
    muted: bool = False


@dataclass(frozen=True)
class Tile:
    """A number that stands for the whole: the value, what it is, and what backs it."""

    value: str
    label: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True)
class Sheet:
    """One result.

    Attributes:
        conditions: (what, value): model, machine, settings.
        baseline: what ``over`` refers to; empty for nothing.
        quality_label: what ``quality`` is; empty where no line has any.
        groups_over: whether ``groups`` are times as fast as the baseline, not speeds.
        head: of the table's ``cells``.
        notes: definitions, a paragraph each.
        doubts: why the figures may not be what they seem, a line each; the terminal shows them too.
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

    def by_speed(self) -> list[Line]:
        """Lines with a speed, the fastest first."""
        known = [line for line in self.lines if line.speed is not None]
        return sorted(known, key=lambda line: -line.speed.value if line.speed else 0.0)

    def table(self) -> tuple[tuple[str, ...], list[tuple[Line, tuple[str, ...]]]]:
        """Head and cells, without columns that nobody has anything in, the fastest line first."""
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
