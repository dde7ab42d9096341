"""Decides which requests are admitted, and which rows run in the next forward pass.

Each request has an owner (``request.owner``), such as a tenant. Owners take turns. A row is one
position in a forward.
"""

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
"""Number of steps after which a waiting prompt goes before the drafts of running sequences."""

PATIENT_SHARE = 4
"""Prompts that have waited :data:`PATIENCE` steps share 1 / PATIENT_SHARE of a step's rows."""

SHORT = 8
"""Largest number of uncached rows of a running sequence; more rows are a prompt.

A draft model has a few such rows after a whole draft was accepted, because it has not read its last
tokens.
"""

SLOWER = 1.15
"""The longest step with several request owners, as a multiple of the step with one owner alone.

The one owner is the owner with the fewest rows. A higher factor gives more rows to the other
owners, and makes that owner wait longer.
"""

KEPT_FREE = 8
"""One named request owner leaves 1 / KEPT_FREE of the batch and of the memory to others."""

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""Weights of a prompt token and of an output token when request owners take turns.

They are from the paper of :class:`Queue`.
"""

MAX_TENANTS = 4096


class Waiting(Protocol):
    """Interface: the attributes of a request that the queue reads."""

    request: GenerationRequest
    sequence: LiveSequence


Item = TypeVar("Item", bound=Waiting)


class Queue(Generic[Item]):
    """Requests that wait for admission, ordered by owner, then by priority, then by arrival.

    Owners take turns by the tokens that they have received so far, as in the virtual token counter
    (Sheng et al. 2024, arXiv 2401.00588): the owner who received the fewest is next. An owner who
    returns after a pause starts level with the waiting owners, without credit for the pause.

    Attributes:
        size: number of waiting requests.
        tokens: number of their prompt tokens.
        served: owner -> weighted tokens received so far; the engine adds output tokens here.
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
        """Return the next request that is ``able`` to run, or None.

        Only the first request of each owner is considered.
        """
        owners = [owner for owner, heap in self._waiting.items() if able(heap[0][2])]
        if not owners:
            return None

        def turn(owner: str) -> tuple[int, int, int]:
            priority, order, _ = self._waiting[owner][0]
            return self.served[owner], priority, order

        return self._waiting[min(owners, key=turn)][0][2]

    def pop(self, live: Item) -> None:
        """Remove a request that :meth:`peek` returned, and charge its prompt to its owner."""
        owner = live.request.owner
        self._last = self.served[owner]
        heapq.heappop(self._waiting[owner])
        self.served[owner] += PROMPT_WEIGHT * live.sequence.prompt_length
        self._left(live)

    def of(self, owner: str) -> int:
        """Return the number of waiting requests of one request owner."""
        return len(self._waiting.get(owner, ()))

    @property
    def owners(self) -> int:
        """The number of request owners (``request.owner``) that have a waiting request."""
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
"""(rows, context) -> seconds of a step with this many rows after this many tokens."""


def room_for(owners: int, least: int, contexts: Sequence[int], budget: int, cost: Seconds) -> int:
    """Return the number of rows that a step may have for several request owners.

    The step may take at most :data:`SLOWER` times as long as ``least`` rows alone. But every owner
    gets ``least`` rows in any case, within the budget.

    Args:
        owners: number of request owners with rows in the step.
        least: number of rows of the owner with the fewest.
        contexts: number of cached tokens of each sequence.
        budget: the most rows of a step.
        cost: seconds of a step.
    """
    equal, longest = min(owners * least, budget), max(contexts)
    within = SLOWER * cost(least, min(contexts))
    fit = bisect_right(range(budget + 1), within, equal, key=lambda rows: cost(rows, longest))
    return max(equal, fit - 1)


def spare_rows(sequences: Sequence[LiveSequence], budget: int, cost: Seconds) -> dict[str, int]:
    """Return request owner -> draft rows that its sequences may have besides one token each.

    A negative number means that the sequences exceed their share even without a draft;
    :func:`shared_out` then decides.
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
    """Choose the forward passes that run now and their rows: first by owner, then by forward.

    An owner with few rows does not wait for the many rows of another owner (:func:`room_for`). The
    rows that the smallest owner leaves are divided equally. A forward that cannot be split may be
    larger than its owner's share. The owner then skips steps until the difference is made up, as in
    deficit round robin (Shreedhar and Varghese 1995), but with a debt instead of savings. If the
    rows do not suffice for all owners, the owners who have waited for the most steps go first.

    Args:
        calls: the requested forwards.
        budget: largest number of rows.
        least: rows of the owner who has the fewest in this step.
        cost: seconds of a step.
        debts: owner -> rows that it owes; a negative number counts the steps in which it got none.
            Changed in place.
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
    """Choose the forwards that run now and the number of rows of each (SARATHI, arXiv 2308.16369).

    Steps of running sequences (a token, a draft to verify, a block of a canvas) come first and are
    never split, because they have few rows and a caller waits for each. The rest of the budget goes
    to prompts, which can be split. At least one forward pass always runs. No forward waits forever:
    steps that were left out go first the next time, and prompts that waited long get a share of the
    budget before the steps.
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
