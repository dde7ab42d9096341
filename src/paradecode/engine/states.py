"""Records and states: what one sequence keeps for the layers with a state of one model.

States stand at starts of pages and are never changed in place, so forks and later requests share
them by count. Records stay for the open page and for drafts only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, STATES, Backend, StatePages, WindowPages
from paradecode.core.decoder import Forward, Store
from paradecode.core.layers import Layers, halves
from paradecode.engine.pages import PagePool
from paradecode.models.config import ModelConfig

SNAPSHOT_BYTES = 256 << 20
"""Bytes of states that only later requests may use; a higher number finds more prefixes again."""
EVERY = 32
"""A long prompt keeps the state at each so many pages. Fewer pages find longer prefixes again, and
push other requests' states out sooner."""


class StatePools:
    """The pages of records and the slots of states of one model.

    Args:
        pages: number of pages of keys and values, which no number of sequences exceeds.
        batch: largest number of requests that run at the same time.
    """

    def __init__(self, config: ModelConfig, pages: int, batch: int) -> None:
        self.layers = config.layers
        self.state_bytes = 4 * config.state_numbers
        idle = min(pages, max(1, SNAPSHOT_BYTES // self.state_bytes))
        # A request holds a state, and the next one while it is written; forks hold one each.
        self.records = PagePool(pages)
        self.states = PagePool(2 * batch + pages + idle, most_idle=idle)

    @property
    def held_bytes(self) -> int:
        """Bytes of the states that sequences hold, or that only the prefix cache keeps."""
        return (self.states.held + self.states.idle) * self.state_bytes


@dataclass
class _Plan:
    """States that a forward writes, which a sequence takes over when all layers have run.

    Attributes:
        slots: page -> state slot; the last page is the next base.
        ran: the layers that have written them.
    """

    slots: dict[int, int]
    ran: set[int]


class SequenceStates:
    """One sequence's records and states.

    Attributes:
        base: the page whose first state is held in ``slot``; -1 is the state before the first row.
    """

    def __init__(self, backend: Backend, pools: StatePools) -> None:
        self.backend, self.pools = backend, pools
        self.base, self.slot = 0, -1
        self._pages: dict[int, int] = {}
        self._plan: _Plan | None = None
        self._own_slots: list[int] = []

    def begin(self, page: int, key: bytes) -> None:
        """Start behind ``page`` published pages, at the state with this key."""
        found = self.pools.states.find(key)
        assert found is not None
        self.base, self.slot = page, self.pools.states.share(found)

    def has(self, key: bytes) -> bool:
        """Return whether a state is published under the key of the pages before it."""
        return self.pools.states.find(key) is not None

    def plan(
        self, forward: Forward, length: int, slots: NDArray[np.int32], marks: Collection[int]
    ) -> StatePages:
        """Take what a forward writes, and return what its span reads and writes.

        Args:
            length: number of committed rows before the forward.
            slots: slots of its rows; -1 stores nothing.
            marks: pages before which states stay for later requests.

        Raises:
            CapacityError: no page or slot is left.
        """
        committed = length
        if forward.store is Store.COMMIT and forward.layers is None:
            committed += len(forward.tokens)
        page = committed // PAGE
        if self._plan is not None and (forward.layers is None or max(self._plan.slots) != page):
            self._forget_plan()
        if self._plan is None and page > self.base:
            kept = [mark for mark in marks if self.base < mark < page]
            kept += range(self.base // EVERY * EVERY + EVERY, page, EVERY)
            self._plan = _Plan({}, set())
            for one in (*sorted({*kept}), page):
                self._plan.slots[one] = self.pools.states.take()
        # Committed rows before the next base are never read again, so they leave no record.
        self._own(sorted({slot // PAGE for slot in slots.tolist() if slot >= page * PAGE}))
        writes = () if self._plan is None else tuple(self._plan.slots.items())
        return StatePages(self._table(), self.base, self.slot, writes)

    def wrote(self, layers: Layers | None) -> dict[int, int]:
        """Record that a forward with these layers succeeded; return new states that may be shared.

        Returns:
            page -> state slot. The caller publishes them before it calls :meth:`release_spare`.
        """
        plan = self._plan
        if plan is None:
            return {}
        if layers is not None:
            plan.ran.update(layer for layer, attends, _ in map(halves, layers) if attends)
            if len(plan.ran) < self.pools.layers:
                return {}
        self._plan = None
        self._let_go(self.slot)
        self.base = max(plan.slots)
        self.slot = plan.slots.pop(self.base)
        self._drop(page for page in list(self._pages) if page < self.base)
        return plan.slots

    def publish(self, slot: int, key: bytes) -> None:
        """Offer a state to later requests, under the key of the pages before it."""
        self.pools.states.publish(slot, key)

    def release_spare(self, slots: Iterable[int]) -> None:
        """Give back states that only later requests may use."""
        for slot in slots:
            self.pools.states.release(slot)

    def hold(self, length: int, end: int) -> tuple[StatePages, list[int]]:
        """Take what steps of the backend need for the rows ``length`` to ``end - 1``.

        Returns:
            What they read, and two slots for new states.
        """
        self._forget_plan()
        self._give_up_slots()
        self._own_slots = [self.pools.states.take(), self.pools.states.take()]
        self._own(range(length // PAGE, -(-end // PAGE)))
        return StatePages(self._table(), self.base, self.slot), self._own_slots

    @property
    def owns_slots(self) -> bool:
        """True if nobody shares the slots that :meth:`hold` has given."""
        return all(map(self.pools.states.writable, self._own_slots))

    def follow(self, base: int, slot: int) -> None:
        """Record the state that steps of the backend have reached."""
        if slot == self.slot:
            return
        if self.slot not in self._own_slots:
            self._let_go(self.slot)
        self.base, self.slot = base, slot
        self._drop(page for page in list(self._pages) if page < base)

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Copy the records of the sequence's slots ``source`` to ``target``, all read first."""
        self._own(sorted({*(target // PAGE).tolist()}))

        def placed(slots: NDArray[np.int64]) -> NDArray[np.int64]:
            pages = np.array([self._pages[page] for page in (slots // PAGE).tolist()], np.int64)
            return pages * PAGE + slots % PAGE

        self.backend.copy(placed(source), placed(target), STATES)

    def fork(self) -> SequenceStates:
        """Return a copy that shares the state and the pages of records."""
        twin = SequenceStates(self.backend, self.pools)
        twin.base = self.base
        twin.slot = self.slot if self.slot < 0 else self.pools.states.share(self.slot)
        twin._pages = {page: self.pools.records.share(at) for page, at in self._pages.items()}
        return twin

    def release(self) -> None:
        """Give everything back."""
        self._forget_plan()
        self._give_up_slots()
        self._drop(list(self._pages))
        self._let_go(self.slot)
        self.base, self.slot = 0, -1

    def held(self) -> tuple[list[int], list[int]]:
        """Return the pages of records and the slots of states that the sequence holds."""
        slots = [] if self._plan is None else [*self._plan.slots.values()]
        slots += {self.slot, *self._own_slots} - {-1}
        return list(self._pages.values()), slots

    def _own(self, touched: Sequence[int]) -> None:
        """Take or copy pages of records so that nobody shares the pages ``touched``."""
        pool, rows = self.pools.records, np.arange(PAGE, dtype=np.int64)
        for page in touched:
            held = self._pages.get(page)
            if held is None:
                self._pages[page] = pool.take()
            elif not pool.writable(held):
                self._pages[page] = fresh = pool.take()
                self.backend.copy(held * PAGE + rows, fresh * PAGE + rows, STATES)
                pool.release(held)

    def _table(self) -> WindowPages:
        first, end = min(self._pages, default=0), max(self._pages, default=-1) + 1
        pages = [self._pages.get(page, -1) for page in range(first, end)]
        return WindowPages(first, np.array(pages, np.int32))

    def _drop(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.pools.records.release(self._pages.pop(page))

    def _forget_plan(self) -> None:
        if self._plan is not None:
            self.release_spare(self._plan.slots.values())
            self._plan = None

    def _give_up_slots(self) -> None:
        self.release_spare(slot for slot in self._own_slots if slot != self.slot)
        self._own_slots = []

    def _let_go(self, slot: int) -> None:
        if slot >= 0:
            self.pools.states.release(slot)
