"""Decides which requests are admitted, and whose rows go into the next forward."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from paradecode.core.decoder import TARGET
from paradecode.engine.forward import PendingForward
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence

PATIENCE = 8
"""Steps after which a prompt that found no room goes before the drafts of running sequences."""

PATIENT_SHARE = 4
"""The share of a step's rows, one in so many, that prompts get together after :data:`PATIENCE`
steps."""

SHORT = 8
"""The most uncached rows of a running sequence; more rows are a prompt. A draft model has a few
such rows, because it has not seen the last tokens of a draft that was accepted as a whole."""

SLOWER = 1.15
"""How many times as long a step may take, compared with a step for the owner with the fewest rows
alone. A higher factor gives more rows to the others, and lets that owner wait longer."""

KEPT_FREE = 8
"""The share of the batch and of the memory, one in so many, that one named owner never takes."""

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""Weights of a prompt token and of an output token when tenants take turns; they are the
paper's."""

MAX_TENANTS = 4096


class Waiting(Protocol):
    """What the queue must know of a request."""

    request: GenerationRequest
    sequence: LiveSequence


Item = TypeVar("Item", bound=Waiting)


class Queue(Generic[Item]):
    """Requests that wait for admission: by owner, then by priority, then by arrival.

    Owners take turns by what they have received so far, as in the virtual token counter
    (Sheng et al. 2024, arXiv 2401.00588): the least served owner is next. An owner who comes back
    from a pause starts level with those who wait, without credit for the pause.

    Attributes:
        size: number of requests that wait.
        tokens: number of their prompt tokens.
        served: owner -> weighted tokens received so far; the engine counts output tokens here.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[int, int, Item]]] = {}
        self.served: dict[str, int] = {}
        self._last = 0
        self._order = count()
        self.size = self.tokens = 0

    def __len__(self) -> int:
        return self.size

    def push(self, live: Item) -> None:
        tenant = live.request.owner
        if tenant not in self._waiting:
            level = min((self.served[other] for other in self._waiting), default=self._last)
            self.served[tenant] = max(self.served.pop(tenant, 0), level)
            self._waiting[tenant] = []
            idle = (other for other in self.served if other not in self._waiting)
            if len(self.served) > MAX_TENANTS and (oldest := next(idle, None)) is not None:
                del self.served[oldest]
        heapq.heappush(self._waiting[tenant], (live.request.priority, next(self._order), live))
        self.size += 1
        self.tokens += live.sequence.prompt_length

    def peek(self, able: Callable[[Item], bool] = lambda first: True) -> Item | None:
        """The next request that is ``able`` to run; only the first request of each owner is
        considered."""
        owners = [owner for owner, heap in self._waiting.items() if able(heap[0][2])]
        if not owners:
            return None

        def turn(owner: str) -> tuple[int, int, int]:
            priority, order, _ = self._waiting[owner][0]
            return self.served[owner], priority, order

        return self._waiting[min(owners, key=turn)][0][2]

    def pop(self, live: Item) -> None:
        """Remove a request that :meth:`peek` returned; its owner is charged for the prompt."""
        owner = live.request.owner
        self._last = self.served[owner]
        heapq.heappop(self._waiting[owner])
        self.served[owner] += PROMPT_WEIGHT * live.sequence.prompt_length
        self._left(live)

    def of(self, owner: str) -> int:
        """Number of an owner's requests that wait."""
        return len(self._waiting.get(owner, ()))

    @property
    def owners(self) -> int:
        """Number of owners with a request that waits."""
        return len(self._waiting)

    def remove(self, live: Item) -> None:
        heap = self._waiting.get(live.request.owner, [])
        kept = [entry for entry in heap if entry[2] is not live]
        if len(kept) < len(heap):
            heapq.heapify(kept)
            self._waiting[live.request.owner] = kept
            self._left(live)

    def all(self) -> list[Item]:
        return [live for heap in self._waiting.values() for _, _, live in heap]

    def _left(self, live: Item) -> None:
        self.size -= 1
        self.tokens -= live.sequence.prompt_length
        if not self._waiting[live.request.owner]:
            del self._waiting[live.request.owner]


Seconds = Callable[[int, int], float]
"""(rows, context) -> seconds of a step with so many rows behind so many tokens."""


def room_for(owners: int, least: int, contexts: Sequence[int], budget: int, cost: Seconds) -> int:
    """Rows of a step for ``owners`` owners, each of whom asks for at least ``least`` rows.

    The step may take at most :data:`SLOWER` times as long as ``least`` rows alone; but every owner
    gets ``least`` rows in any case, within the budget.
    """
    equal, longest = min(owners * least, budget), max(contexts)
    within = SLOWER * cost(least, min(contexts))
    fit = bisect_right(range(budget + 1), within, equal, key=lambda rows: cost(rows, longest))
    return max(equal, fit - 1)


def spare_rows(sequences: Sequence[LiveSequence], budget: int, cost: Seconds) -> dict[str, int]:
    """Draft rows that each owner's sequences may have in a step, beside a token each.

    A negative number says that they exceed their share without any draft; :func:`shared_out` then
    decides.
    """
    counts, rows = Counter[str](), Counter[str]()
    for sequence in sequences:
        counts[sequence.owner] += 1
        rows[sequence.owner] += sequence.last_rows
    asked = sorted(counts, key=rows.__getitem__)
    spare = {asked[0]: budget - counts[asked[0]]}
    if len(asked) > 1:
        contexts = [sequence.caches[TARGET].length for sequence in sequences]
        left = room_for(len(asked), rows[asked[0]], contexts, budget, cost) - rows[asked[0]]
        for place, owner in enumerate(asked[1:], 1):
            share = max(left // (len(asked) - place), 1)
            spare[owner] = share - counts[owner]
            left -= min(share, rows[owner])
    return spare


def shared_out(
    calls: Sequence[PendingForward], budget: int, least: int, cost: Seconds, debts: dict[str, int]
) -> list[tuple[PendingForward, int]]:
    """Choose the calls that run in this forward, and how many rows of each: first by owner, then by
    call.

    An owner who asks for little does not wait for the many rows of another (:func:`room_for`). The
    rows that are left beside the smallest owner's are divided equally. A call that cannot be cut
    may be larger than its owner's share. The owner then sits out steps until the difference is made
    up, as in deficit round robin (Shreedhar and Varghese 1995), but with a debt instead of savings.
    Where rows are too few for all owners, those who got none for the most steps go first.

    Args:
        least: rows of the owner who asks for the fewest in this step.
        debts: owner -> rows that it owes; below 0, steps in which nothing was left for it. Changed
            in place.
    """
    groups: dict[str, list[PendingForward]] = {}
    for call in calls:
        groups.setdefault(call.owner.owner, []).append(call)

    def turn(group: tuple[str, list[PendingForward]]) -> tuple[int, int]:
        return min(debts.get(group[0], 0), 0), sum(call.rows for call in group[1])

    asked = sorted(groups.items(), key=turn)
    contexts = [call.cache.length for call in calls]
    left = room_for(len(groups), least, contexts, budget, cost)
    chosen: list[tuple[PendingForward, int]] = []
    for place, (owner, group) in enumerate(asked):
        share = max(left // (len(asked) - place), 1)
        before = debts.pop(owner, 0) if chosen or debts.get(owner, 0) < 0 else 0
        owed = max(before, 0)
        if not chosen or (left > 0 and owed < share):
            mine = share_out(group, share - owed)
            chosen += mine
            used = sum(rows for _, rows in mine)
            left -= used
            owed += used
        elif owed < share:
            debts[owner] = min(before, 0) - 1
        if owed > share:
            debts[owner] = owed - share
    return chosen


def share_out(calls: Iterable[PendingForward], budget: int) -> list[tuple[PendingForward, int]]:
    """Choose the calls that run in this forward, and how many rows of each (SARATHI, arXiv
    2308.16369).

    Steps of running sequences (a token, a draft to verify, a block of a canvas) come first and
    whole: they are few rows, and somebody waits for each. The rest of the budget goes to prompts,
    which can be cut. At least one call always runs. Nobody waits for ever: steps that were left out
    go first the next time, and prompts that waited long get a part of the budget before the steps
    do.
    """
    chosen: list[tuple[PendingForward, int]] = []
    left, patient = budget, max(budget // PATIENT_SHARE, 1)
    for call in sorted(calls, key=_turn):
        favoured = _turn(call)[0] == 0
        room = min(left, patient) if favoured else left
        if call.rows <= room or not (chosen or call.divisible):
            rows = call.rows
        elif call.divisible and (room > 0 or not chosen):
            rows = max(room, 1)
        else:
            call.waited += 1
            continue
        call.waited = 0
        chosen.append((call, rows))
        left -= rows
        patient -= rows if favoured else 0
    return chosen


def _turn(call: PendingForward) -> tuple[int, int]:
    if not (call.divisible and call.rows > SHORT):
        return 1, -call.waited
    return (0, -call.waited) if call.waited >= PATIENCE else (2, 0)
