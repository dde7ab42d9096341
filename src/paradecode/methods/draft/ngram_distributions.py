"""A table from n-grams to the model's distribution after them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

WIDTH = 10
"""Tokens kept after each n-gram."""

ENTRY_BYTES = 800
"""Bytes that an n-gram with ``WIDTH`` tokens takes in CPython."""

MOST_ENTRIES = 1 << 15


class NgramDistributions:
    """n-gram -> the model's mean distribution after it; the n-gram unused longest is dropped
    first."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self.most_entries = most_entries
        self._entries: OrderedDict[
            tuple[int, ...], tuple[int, NDArray[np.int32], NDArray[np.float64]]
        ] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return ENTRY_BYTES * len(self)

    def of(self, ngram: tuple[int, ...]) -> tuple[NDArray[np.int32], NDArray[np.float64]] | None:
        """Up to WIDTH token ids, the most likely first, and their probabilities (sum 1)."""
        entry = self._entries.get(ngram)
        return None if entry is None else entry[1:]

    def longest(
        self, text: tuple[int, ...], most: int
    ) -> tuple[int, tuple[NDArray[np.int32], NDArray[np.float64]] | None]:
        """The longest known n-gram at the end of ``text``: its size, 2 to ``most``, and its
        distribution."""
        for size in range(min(most, len(text)), 1, -1):
            known = self.of(text[-size:])
            if known is not None:
                return size, known
        return 0, None

    def learn(
        self, text: tuple[int, ...], most: int, ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> None:
        """Add the model's distribution behind ``text`` to its last n-grams of 2 to ``most``
        tokens."""
        for size in range(2, min(most, len(text)) + 1):
            self.add(text[-size:], ids, chances)

    def add(
        self, ngram: tuple[int, ...], ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> None:
        """Add a visit of an n-gram: keep the running mean of all visits, cut to the WIDTH
        likeliest tokens."""
        visits, old = 0, self._entries.get(ngram)
        if old is not None:
            visits = old[0]
            mean = dict(zip(old[1].tolist(), (old[2] * visits / (visits + 1)).tolist()))
            for token, chance in zip(ids.tolist(), chances.tolist()):
                mean[token] = mean.get(token, 0.0) + chance / (visits + 1)
            best = sorted(mean.items(), key=lambda item: -item[1])[:WIDTH]
            ids = np.array([token for token, _ in best], np.int32)
            chances = np.array([chance for _, chance in best])
        self._entries[ngram] = (visits + 1, ids, chances / chances.sum())
        self._entries.move_to_end(ngram)
        if len(self._entries) > self.most_entries:
            self._entries.popitem(last=False)
