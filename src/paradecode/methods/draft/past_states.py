"""The target's states behind texts that one tenant's requests have read, for draft heads.

A prompt whose keys and values come from the prefix cache is not computed again, so the target gives
no states of its rows. A head that reads states would not see that part of the text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from paradecode.core.network import Array

PAGE = 16
"""Rows that are kept and forgotten together: as many as a page of keys and values has."""

MOST_BYTES = 64 << 20
"""Kept for one tenant and set of layers: 9,700 tokens where a head reads three layers of a 135M
model, 3,600 with a 1.5B model."""


class PastStates:
    """Pages of states, each found by all tokens up to its end. What was asked for least lately goes
    first. A state depends on these tokens alone, so any request of the tenant may take it.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        self._pages: OrderedDict[bytes, Array] = OrderedDict()

    def of(self, tokens: NDArray[np.int32]) -> Array | None:
        """float32 [n, F] of all n tokens (whole pages), or None unless all are known."""
        found, key = [], b""
        for start in range(0, len(tokens), PAGE):
            key = key_of(key, tokens[start : start + PAGE])
            if key not in self._pages:
                return None
            self._pages.move_to_end(key)
            found.append(self._pages[key])
        return np.concatenate(found) if found else None

    def keep(self, key: bytes, states: Array) -> None:
        """Keep the states [PAGE, F] of a page."""
        if key in self._pages:
            self._pages.move_to_end(key)
            return
        self._pages[key] = states.copy()
        self.nbytes += states.nbytes
        while self.nbytes > self.most_bytes:
            self.nbytes -= self._pages.popitem(last=False)[1].nbytes


class TextStates:
    """One request's text as it grows: its full pages go to ``past``."""

    def __init__(self, past: PastStates) -> None:
        self.past = past
        self._key = b""
        self._tokens = np.zeros(0, np.int32)
        self._states: list[Array] = []

    def extend(self, tokens: NDArray[np.integer], states: Array) -> None:
        """The next rows: their own tokens [n], and the target's states [n, F] there."""
        self._tokens = np.append(self._tokens, tokens).astype(np.int32)
        self._states.append(states)
        if len(self._tokens) < PAGE:
            return
        rows, whole = np.concatenate(self._states), len(self._tokens) // PAGE * PAGE
        for start in range(0, whole, PAGE):
            self._key = key_of(self._key, self._tokens[start : start + PAGE])
            self.past.keep(self._key, rows[start : start + PAGE])
        self._tokens, self._states = self._tokens[whole:], [rows[whole:]]


def key_of(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
    """The key of a page with ``tokens`` behind the page with the key ``previous``."""
    return hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest()
