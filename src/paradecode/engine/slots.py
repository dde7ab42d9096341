"""Records which slots of a cache have keys and values, and for which layers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paradecode.core.layers import Layers, attending

_ALL = np.zeros(1, np.intp)


@lru_cache(256)
def _rows(layers: Layers | None, count: int) -> NDArray[np.intp]:
    """Return the rows of ``StoredSlots`` for the attending layers among ``layers`` (None: all).

    If all ``count`` layers attend, the result is the object ``_ALL``, so callers can compare by
    identity.
    """
    attend = range(count) if layers is None else attending(layers)
    return _ALL if len(attend) == count else 1 + np.array(sorted(attend), np.intp)


class StoredSlots:
    """The slots of one cache that have keys and values. Common queries do not read all slots.

    Args:
        layers: number of layers of the model.
        capacity: number of slots.
        count: number of leading slots that have keys and values of all layers at first.

    Attributes:
        end: every slot from this one on is empty.
    """

    def __init__(self, layers: int, capacity: int, count: int) -> None:
        self.end, self._layers = count, layers
        # Row 0 is for all layers, row 1 + i for layer i; there is one row until two layers differ.
        self._held = np.zeros((1, capacity), bool)
        self._held[:, :count] = True
        # Number of leading slots of each row that are known to be filled.
        self._known = np.array([count])

    def fill(self, slots: NDArray[np.integer], layers: Layers | None = None) -> None:
        """Record that the attending layers of ``layers`` (None: all) stored rows in ``slots``."""
        rows = _rows(layers, self._layers)
        if len(slots) == 0 or len(rows) == 0:
            return
        if rows is _ALL:
            self._held[:, slots] = True
        else:
            if len(self._held) == 1:
                self._held = np.repeat(self._held, 1 + self._layers, axis=0)
                self._known = np.repeat(self._known, 1 + self._layers)
            self._held[rows[:, None], slots] = True
            self._held[0, slots] = self._held[1:, slots].all(axis=0)
        self.end = max(self.end, int(slots.max()) + 1)

    def clear(self, start: int, stop: int) -> None:
        """Record that the slots from ``start`` to ``stop - 1`` are empty."""
        self._held[:, start:stop] = False
        np.minimum(self._known, start, out=self._known)
        if self.end <= stop:
            self.end = min(self.end, start)

    def holds(self, slots: NDArray[np.integer], layers: Layers | None = None) -> bool:
        """Return whether ``slots``, at least one, hold keys and values of the attending layers."""
        low, high = int(slots.min()), int(slots.max())
        if low < 0 or high >= self._held.shape[1]:
            return False
        if self.leads(high + 1, layers) or self._held[0, slots].all():
            return True
        return bool(self._held[self._of(layers)[:, None], slots].all())

    def leads(self, count: int, layers: Layers | None = None) -> bool:
        """Return whether the first ``count`` slots hold keys and values of the attending layers."""
        return self._all_held(_ALL, count) or self._all_held(self._of(layers), count)

    def _of(self, layers: Layers | None) -> NDArray[np.intp]:
        rows = _rows(layers, self._layers)
        return rows if len(self._held) > 1 else _ALL[: len(rows)]

    def _all_held(self, rows: NDArray[np.intp], count: int) -> bool:
        known = self._known[rows]
        start = int(known.min(initial=count))
        if start >= count:
            return True
        if not self._held[rows, start].all():  # A known gap is not searched again.
            return False
        part = self._held[rows, start:count]
        lead = np.where(part.all(axis=1), count, start + part.argmin(axis=1))
        self._known[rows] = np.maximum(lead, known)
        return bool(part.all())
