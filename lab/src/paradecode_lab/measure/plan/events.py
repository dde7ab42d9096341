"""An exact simulation of items that go round a way of servers, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

Seconds = Any
"""A time: a float, or a Fraction, with which the results are exact."""


@dataclass(frozen=True)
class Leg:
    """One server on the way: a machine that computes, or a link that carries.

    Attributes:
        server: its name. A server serves one item at a time, in the order of their arrival.
        seconds: number of an item's pass -> the time that the server is busy with it.
        delay: the time after which the item arrives at the next leg. It occupies no server.
    """

    server: str
    seconds: Callable[[int], Seconds]
    delay: Seconds = 0


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    Attributes:
        ends: for each item, the time at which each of its passes ended.
        busy: server -> the time for which it was busy.
    """

    ends: tuple[tuple[Seconds, ...], ...]
    busy: dict[str, Seconds]

    @property
    def seconds(self) -> Seconds:
        """The time at which the last pass ended."""
        return max(item[-1] for item in self.ends)


def play(
    way: Sequence[Leg],
    items: int,
    passes: int,
    back: Sequence[Leg] = (),
    room: int | None = None,
    behind: int = 0,
) -> Simulated:
    """Simulate items that each go several times along the way.

    Args:
        items, passes: number of items, and how often each of them goes along the way.
        back: the legs from the end of a pass to the beginning of the item's next one.
        room: number of items that are on the way at a time; by default all.
        behind: an item begins when the one before it has ended so many passes.
    """
    ends: list[list[Seconds]] = [[] for _ in range(items)]
    busy: Counter[str] = Counter(dict.fromkeys([leg.server for leg in (*way, *back)], 0))
    free: dict[str, Seconds] = dict.fromkeys(busy, 0)
    events: list[tuple[Seconds, int, int, int]] = []
    """Arrivals: time, order among equal times, item, and leg; legs of ``back`` are negative."""
    begun = order = 0

    def arrive(now: Seconds, item: int, leg: int) -> None:
        nonlocal order
        order += 1
        heappush(events, (now, order, item, leg))

    def begin(now: Seconds) -> None:
        nonlocal begun
        while begun < items:
            done = sum(len(own) == passes for own in ends[:begun])
            if begun - done >= (room or items):
                return
            if begun and len(ends[begun - 1]) < min(behind, passes):
                return
            begun += 1
            arrive(now, begun - 1, 0)

    begin(0)
    while events:
        now, _, item, leg = heappop(events)
        if leg == len(way):
            ends[item].append(now)
            if len(ends[item]) < passes:
                arrive(now, item, -len(back))
            begin(now)
            continue
        station = way[leg] if leg >= 0 else back[leg]
        taken = station.seconds(len(ends[item]))
        free[station.server] = max(now, free[station.server]) + taken
        busy[station.server] += taken
        arrive(free[station.server] + station.delay, item, leg + 1)
    return Simulated(tuple(map(tuple, ends)), dict(busy))
