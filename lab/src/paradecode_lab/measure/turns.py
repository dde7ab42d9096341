"""Run many players over many batches so that their times can be compared.

In each batch every player has its turn, in a new random order, so that a slow minute of the
machine, or what another player left in the caches, hurts all in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import Record

MAX_FAILURES = 3
"""Failures in a row after which a player takes no further turns."""

DoneKey = tuple[str, int, int, str]
"""(engine, batch size, round, item)."""


class PlayerError(Exception):
    """A generation failed. ``fatal`` says that the player cannot go on."""

    def __init__(self, reason: str, fatal: bool = False) -> None:
        super().__init__(reason)
        self.fatal = fatal


@dataclass(frozen=True)
class Unit:
    """Items that run together; batch size, round and number (from 0) name a unit.

    If every batch has one kind of task, numbers count within that kind.
    """

    round: int
    number: int
    items: tuple[Item, ...]

    @property
    def batch(self) -> int:
        return len(self.items)


def units_of(items: Sequence[Item], batch: int = 1, round: int = 0) -> list[Unit]:
    """Items in groups of ``batch``; the last may be smaller."""
    starts = range(0, len(items), batch)
    return [
        Unit(round, number, tuple(items[start : start + batch]))
        for number, start in enumerate(starts)
    ]


class Player(Protocol):
    """An engine or a method that is ready; a slow one can stop after ``max_rounds`` rounds."""

    @property
    def name(self) -> str: ...

    @property
    def max_rounds(self) -> int: ...

    def play(self, unit: Unit) -> list[Record]:
        """Generate once, timed; returns a record for each item. Raises PlayerError."""
        ...


@dataclass(frozen=True)
class Turn:
    """One measurement to be made."""

    unit: Unit
    player: Player


def schedule(
    units: Sequence[Unit],
    players: Sequence[Player],
    done: Collection[DoneKey] = (),
    seed: int | None = 0,
) -> Iterator[Turn]:
    """All measurements, in order.

    Args:
        done: measurements that an interrupted run has made.
    """
    for unit in units:
        order = list(players)
        random.Random(f"{seed}/{unit.batch}/{unit.round}/{unit.items[0].id}").shuffle(order)
        for player in order:
            keys = {(player.name, unit.batch, unit.round, item.id) for item in unit.items}
            if unit.round < player.max_rounds and not keys.issubset(done):
                yield Turn(unit, player)


def run(
    turns: Sequence[Turn],
    keep: Callable[[Record], None],
    lost: Callable[[str, str], None],
    quiet_below: float | None = None,
    retries: int = 2,
) -> None:
    """Make the measurements.

    Args:
        keep: called with each record, also failed ones, before the next measurement starts.
        lost: called with (name, reason) when a player takes no further turns.
        quiet_below: a measurement is repeated while other processes keep more cores than this
            busy; the least disturbed one counts. None repeats nothing.
        retries: the most repetitions.
    """
    failures: dict[str, int] = {}
    gone: set[str] = set()
    for turn in turns:
        name, unit = turn.player.name, turn.unit
        if name in gone:
            continue
        try:
            records = _quietest(turn, quiet_below, retries)
        except PlayerError as error:
            records = [
                Record(name, item.id, unit.round, error=str(error), batch=unit.batch,
                       unit=unit.number)
                for item in unit.items
            ]  # fmt: skip
            failures[name] = failures.get(name, 0) + 1
            if error.fatal or failures[name] >= MAX_FAILURES:
                gone.add(name)
        else:
            failures[name] = 0
        for record in records:
            keep(record)
        if name in gone:
            lost(name, records[0].error)


def _quietest(turn: Turn, quiet_below: float | None, retries: int) -> list[Record]:
    best = turn.player.play(turn.unit)
    for _ in range(retries):
        load = best[0].other_load
        if quiet_below is None or load is None or load <= quiet_below:
            break
        again = turn.player.play(turn.unit)
        if again[0].other_load is not None and again[0].other_load < load:
            best = again
    return best
