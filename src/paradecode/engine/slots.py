"""Which slots of a cache hold keys and values, and for which layers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paradecode.core.layers import Layers, attending

_ALL = np.zeros(1, np.intp)


@lru_cache(256)
def _rows(layers: Layers | None, count: int) -> NDArray[np.intp]:
    """The rows of ``StoredSlots`` for those of the layers (None: all ``count`` of them) that
    attend.

    Where all layers attend, the answer is the object ``_ALL``, so callers can compare by identity.
    """
    attend = range(count) if layers is None else attending(layers)
    return _ALL if len(attend) == count else 1 + np.array(sorted(attend), np.intp)


class StoredSlots:
    """Which slots of one cache are filled. Forwards ask often, so usual questions do not read all
    slots.

    Args:
        layers: number of layers of the model.
        capacity: number of slots.
        count: number of leading slots that hold keys and values of all layers at first.

    Attributes:
        end: every slot from here on is empty.
    """

    def __init__(self, layers: int, capacity: int, count: int) -> None:
        self.end, self._layers = count, layers
        # Row 0 is of all layers, row 1 + i of layer i; there is one row until two layers differ.
        self._held = np.zeros((1, capacity), bool)
        self._held[:, :count] = True
        # How many leading slots of each row are known to be held.
        self._known = np.array([count])

    def fill(self, slots: NDArray[np.integer], layers: Layers | None = None) -> None:
        """Book that these layers (None: all), if they attend, stored rows in the slots."""
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
        """Book that the slots from ``start`` to ``stop - 1`` are empty."""
        self._held[:, start:stop] = False
        np.minimum(self._known, start, out=self._known)
        if self.end <= stop:
            self.end = min(self.end, start)

    def holds(self, slots: NDArray[np.integer], layers: Layers | None = None) -> bool:
        """Whether all of ``slots``, at least one, hold keys and values of the layers that
        attend."""
        low, high = int(slots.min()), int(slots.max())
        if low < 0 or high >= self._held.shape[1]:
            return False
        if self.leads(high + 1, layers) or self._held[0, slots].all():
            return True
        return bool(self._held[self._of(layers)[:, None], slots].all())

    def leads(self, count: int, layers: Layers | None = None) -> bool:
        """Whether the first ``count`` slots hold keys and values of the layers that attend."""
        return self._all_held(_ALL, count) or self._all_held(self._of(layers), count)

    def _of(self, layers: Layers | None) -> NDArray[np.intp]:
        rows = _rows(layers, self._layers)
        return rows if len(self._held) > 1 else _ALL[: len(rows)]

    def _all_held(self, rows: NDArray[np.intp], count: int) -> bool:
        known = self._known[rows]
        start = int(known.min(initial=count))
        if start >= count:
            return True
        if not self._held[rows, start].all():  # A known gap is not looked at again and again.
            return False
        part = self._held[rows, start:count]
        lead = np.where(part.all(axis=1), count, start + part.argmin(axis=1))
        self._known[rows] = np.maximum(lead, known)
        return bool(part.all())
