"""Who is admitted, and whose rows go into the next forward."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Generic, Protocol, TypeVar

from paradecode.core.sequence import TARGET
from paradecode.engine.forward import PendingForward
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence

PATIENCE = 8
"""Steps after which a prompt that found no room goes before the drafts of running sequences."""

PATIENT_SHARE = 4
"""Prompts that waited so long get one such part of a step's rows, all of them together."""

SHORT = 8
"""Rows up to which committed tokens are a step of a running sequence rather than a prompt: a draft
model, for one, has not seen the last few tokens when its draft was accepted as a whole."""

SLOWER = 1.15
"""Times as long as alone a step may take that whoever asks for the fewest rows shares."""

KEPT_FREE = 8
"""One such part of the batch and of the memory is never one owner's, if owners have names."""

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""What a token counts when tenants take turns; the paper's."""

MAX_TENANTS = 4096


class Waiting(Protocol):
    """What the queue must know of a request."""

    request: GenerationRequest
    sequence: LiveSequence


Item = TypeVar("Item", bound=Waiting)


class Queue(Generic[Item]):
    """Requests that wait for admission: by owner, then by priority, then by arrival.

    Owners take turns by what they were given so far, as in the virtual token counter
    (Sheng et al. 2024, arXiv 2401.00588): the least served is next, and whoever comes back from a
    pause starts level with those that wait, without credit for the pause.

    Attributes:
        size: how many wait.
        tokens: prompt tokens that wait.
        served: owner -> what it was given so far; whoever serves an owner counts it here.
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
        """The next one that is ``able`` to run; of each owner the first is asked about."""
        owners = [owner for owner, heap in self._waiting.items() if able(heap[0][2])]
        if not owners:
            return None

        def turn(owner: str) -> tuple[int, int, int]:
            priority, order, _ = self._waiting[owner][0]
            return self.served[owner], priority, order

        return self._waiting[min(owners, key=turn)][0][2]

    def pop(self, live: Item) -> None:
        """Take one out that :meth:`peek` gave; its owner is charged for the prompt."""
        owner = live.request.owner
        self._last = self.served[owner]
        heapq.heappop(self._waiting[owner])
        self.served[owner] += PROMPT_WEIGHT * live.sequence.prompt_length
        self._left(live)

    def of(self, owner: str) -> int:
        """How many of an owner's wait."""
        return len(self._waiting.get(owner, ()))

    @property
    def owners(self) -> int:
        """How many have something that waits."""
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
"""What a step takes that has so many rows, behind so many tokens of context."""


def room_for(owners: int, least: int, contexts: Sequence[int], budget: int, cost: Seconds) -> int:
    """Rows of a step of so many owners, none of whom asks for fewer than ``least``.

    As many as take at most :data:`SLOWER` times as long as ``least`` rows alone, and ``least`` for
    everybody anyway.
    """
    equal, longest = min(owners * least, budget), max(contexts)
    within = SLOWER * cost(least, min(contexts))
    fit = bisect_right(range(budget + 1), within, equal, key=lambda rows: cost(rows, longest))
    return max(equal, fit - 1)


def spare_rows(sequences: Sequence[LiveSequence], budget: int, cost: Seconds) -> dict[str, int]:
    """Draft rows that each owner's sequences may have in a step, besides a token each.

    Below 0 where they ask for more than their share without a draft: :func:`shared_out` decides.
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
    """Which calls run in this forward, and how many of their rows: owners first, then calls.

    An owner who asks for little does not wait for the many rows of another (:func:`room_for`); what
    is left beside the rows of the first is divided equally. A call that cannot be cut may be more
    than its owner's share: the owner then sits out steps until that is made up for, as in deficit
    round robin (Shreedhar and Varghese 1995), but with a debt instead of savings. Where rows are
    too few for all owners, those go first who got none for the most steps.

    Args:
        least: rows that the owner asks for who asks for the fewest in this step.
        debts: rows by owner, or below 0 the steps for which nothing was left for it; changed.
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
    """Which calls run in this forward, and how many of their rows (SARATHI, arXiv 2308.16369).

    Steps of running sequences (a token, a draft to verify, a block of a canvas) come first and
    whole: they are few rows and somebody waits for each. What is left of the budget goes to
    prompts, which can be cut. At least one call always runs. Nobody waits for ever: of the steps,
    those that were left out before come first, and prompts that waited long get a part of the
    budget before the steps do.
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
