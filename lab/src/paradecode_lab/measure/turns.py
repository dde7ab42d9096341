"""Runs many players over many batches so that their times can be compared.

Every player decodes each batch before the next batch begins, in a new random order. A slow minute
of the machine, or what another player left in the caches, then affects all players alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import Record

MAX_FAILURES = 3
"""Number of failures in a row after which a player takes no further turns."""

DoneKey = tuple[str, int, int, str]
"""Identifies a measurement: (player's name, batch size, round, item id)."""


class PlayerError(Exception):
    """A generation failed; ``fatal`` says that the player cannot go on."""

    def __init__(self, reason: str, fatal: bool = False) -> None:
        super().__init__(reason)
        self.fatal = fatal


@dataclass(frozen=True)
class Unit:
    """Items that run together. The batch size, the round and the number (from 0) identify a unit.

    If every batch has one kind of task, numbers count the batches of that kind.
    """

    round: int
    number: int
    items: tuple[Item, ...]

    @property
    def batch(self) -> int:
        return len(self.items)


def units_of(items: Sequence[Item], batch: int = 1, round: int = 0) -> list[Unit]:
    """Divide the items into units of ``batch`` items each; the last unit may be smaller."""
    starts = range(0, len(items), batch)
    return [
        Unit(round, number, tuple(items[start : start + batch]))
        for number, start in enumerate(starts)
    ]


class Player(Protocol):
    """An engine or a method that is ready to decode.

    A slow player takes its turns only in the first ``max_rounds`` rounds.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_rounds(self) -> int: ...

    def play(self, unit: Unit) -> list[Record]:
        """Decode the unit once and return a timed record for each item.

        Raises:
            PlayerError: the generation failed.
        """
        ...


@dataclass(frozen=True)
class Turn:
    """A measurement to be made: one player decodes one unit."""

    unit: Unit
    player: Player


def schedule(
    units: Sequence[Unit],
    players: Sequence[Player],
    done: Collection[DoneKey] = (),
    seed: int | None = 0,
) -> Iterator[Turn]:
    """Yield all measurements that are left to make, in their order.

    Args:
        done: keys of the measurements that an interrupted run has already made.
        seed: seed of the random order of players.
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
    """Make the measurements, one after the other.

    Args:
        keep: called with each record, including failed ones, before the next measurement starts.
        lost: called with (name, reason) when a player takes no further turns.
        quiet_below: number of cores. A measurement is repeated if other processes kept more cores
            busy; the least disturbed repetition counts. None repeats nothing.
        retries: the most repetitions of one measurement.
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
