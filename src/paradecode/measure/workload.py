"""Run many players over many items so that their times can be compared.

Round by round and item by item every player has its turn, in an order drawn afresh each time, so
that a slow minute of the machine or what the neighbour left in the caches hurts all alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paradecode.measure.prompts import Item
from paradecode.measure.results import Record

MAX_FAILURES = 3
"""Failures in a row after which a player is given up."""


class PlayerError(Exception):
    """A generation failed. ``fatal``: the player cannot go on."""

    def __init__(self, reason: str, fatal: bool = False) -> None:
        super().__init__(reason)
        self.fatal = fatal


class Player(Protocol):
    """An engine that is ready.

    Attributes:
        name: of the engine, as in the results.
        max_rounds: a slow engine may sit out the later rounds.
    """

    name: str
    max_rounds: int

    def play(self, item: Item, round: int) -> Record:
        """Generate once, timed; raises PlayerError."""
        ...


@dataclass(frozen=True)
class Turn:
    """One measurement to be made."""

    round: int
    item: Item
    player: Player


def schedule(
    items: Sequence[Item],
    players: Sequence[Player],
    rounds: int,
    done: Collection[tuple[str, str, int]] = (),
    seed: int = 0,
) -> Iterator[Turn]:
    """All measurements, in order.

    Args:
        done: (engine, item, round) that exist already, from an interrupted run.
    """
    for number in range(rounds):
        for item in items:
            order = list(players)
            random.Random(f"{seed}/{number}/{item.id}").shuffle(order)
            for player in order:
                if number < player.max_rounds and (player.name, item.id, number) not in done:
                    yield Turn(number, item, player)


def run(
    turns: Sequence[Turn],
    keep: Callable[[Record], None],
    lost: Callable[[Player, str], None],
    quiet_below: float | None = None,
    retries: int = 2,
) -> None:
    """Make the measurements.

    Args:
        keep: told of each, failed ones included; called before the next starts.
        lost: told when a player is given up, and why.
        quiet_below: repeat a measurement while other processes keep more cores than this busy;
            the least disturbed one counts. None repeats nothing.
        retries: how often at most.
    """
    failures: dict[str, int] = {}
    gone: set[str] = set()
    for turn in turns:
        name = turn.player.name
        if name in gone:
            continue
        try:
            record = _quietest(turn, quiet_below, retries)
        except PlayerError as error:
            keep(Record(name, turn.item.id, turn.round, error=str(error)))
            failures[name] = failures.get(name, 0) + 1
            if error.fatal or failures[name] >= MAX_FAILURES:
                gone.add(name)
                lost(turn.player, str(error))
            continue
        failures[name] = 0
        keep(record)


def _quietest(turn: Turn, quiet_below: float | None, retries: int) -> Record:
    best = turn.player.play(turn.item, turn.round)
    for _ in range(retries):
        if quiet_below is None or best.other_load is None or best.other_load <= quiet_below:
            break
        again = turn.player.play(turn.item, turn.round)
        if again.other_load is not None and again.other_load < best.other_load:
            best = again
    return best
