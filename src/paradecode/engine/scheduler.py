"""Who is admitted, and whose rows go into the next forward."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradecode.engine.live import Call, Live


PATIENCE = 8
"""Steps after which a prompt that found no room goes before the drafts of running sequences."""


class Queue:
    """Requests that wait for admission, by priority, then by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Live]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, live: Live) -> None:
        heapq.heappush(self._heap, (live.request.priority, next(self._order), live))

    def peek(self) -> Live:
        return self._heap[0][2]

    def pop(self) -> Live:
        return heapq.heappop(self._heap)[2]

    def remove(self, live: Live) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not live]
        heapq.heapify(self._heap)

    def all(self) -> list[Live]:
        return [live for _, _, live in self._heap]


def share_out(calls: Iterable[Call], budget: int) -> list[tuple[Call, int]]:
    """Which calls run in this forward, and how many of their rows (SARATHI, arXiv 2308.16369).

    Steps of running sequences come first and whole: they are few rows and somebody waits for each.
    What is left of the budget goes to prompts, which can be cut. At least one call always runs,
    and those that were left out before come first, so that nobody waits for ever.
    """
    chosen: list[tuple[Call, int]] = []
    left = budget
    for call in sorted(calls, key=_turn):
        if call.rows <= left or not (chosen or call.divisible):
            rows = call.rows
        elif call.divisible and (left > 0 or not chosen):
            rows = max(left, 1)
        else:
            call.waited += 1
            continue
        call.waited = 0
        chosen.append((call, rows))
        left -= rows
    return chosen


def _turn(call: Call) -> tuple[bool, int]:
    if call.divisible and call.waited < PATIENCE:
        return True, 0
    return False, -call.waited
