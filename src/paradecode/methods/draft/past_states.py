"""The target's states behind texts that one tenant's requests have read, for draft heads.

A prompt whose keys and values come from the prefix cache is not computed again, so the target gives
no states of its rows. A head that reads states would not see that part of the text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.network import Array

PAGE = 16
"""Rows that are kept and forgotten together: as many as a page of keys and values has."""

MOST_BYTES = 24 << 20
"""Bytes of one tenant and set of layers: 3,600 tokens where a head reads three layers of a 135M
model, 1,300 with a 1.5B model. All tenants together have 128 MB for states and for what is
learned."""


class PastStates:
    """Pages of states, each under a key of all tokens up to its end. A state depends on these
    tokens alone, so every request of the tenant may use it.

    A text is of use only if its pages are there from the first one on. The end of a text is
    therefore forgotten before its beginning, and the text that was unused longest before the
    others.
    """

    saves_work: ClassVar[bool] = True
    """States can be computed again, so they are forgotten before anything that a tenant has
    learned."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        self._pages: OrderedDict[bytes, Array] = OrderedDict()

    def of(self, tokens: NDArray[np.int32]) -> Array | None:
        """float32 [n, F]: the states of all n tokens (whole pages), or None unless all are
        known."""
        keys = [b""]
        for start in range(0, len(tokens), PAGE):
            keys.append(key_of(keys[-1], tokens[start : start + PAGE]))
            if keys[-1] not in self._pages:
                return None
        self._touch(keys[1:])
        return np.concatenate([self._pages[key] for key in keys[1:]]) if keys[1:] else None

    def keep(self, keys: Sequence[bytes], states: Array) -> None:
        """Keep the newest pages of a text.

        Args:
            keys: keys of all pages of the text.
            states: [n * PAGE, F], states of the last n pages.
        """
        pages = states.reshape(-1, PAGE, states.shape[1])
        for key, page in zip(keys[len(keys) - len(pages) :], pages):
            if key not in self._pages:
                self._pages[key] = page.copy()
                self.nbytes += page.nbytes
        self._touch(keys)
        while self.nbytes > self.most_bytes:
            self.nbytes -= self._pages.popitem(last=False)[1].nbytes

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Mark a text as used; its first page counts as used last."""
        for key in reversed(keys):
            if key in self._pages:
                self._pages.move_to_end(key)


class TextStates:
    """The growing text of one request, whose full pages go to ``past``."""

    def __init__(self, past: PastStates) -> None:
        self.past = past
        self._keys: list[bytes] = []
        self._tokens = np.zeros(0, np.int32)
        self._states: list[Array] = []

    def extend(self, tokens: NDArray[np.integer], states: Array) -> None:
        """Append rows: their own tokens [n], and the target's states [n, F] there."""
        self._tokens = np.append(self._tokens, tokens).astype(np.int32)
        self._states.append(states)
        if len(self._tokens) < PAGE:
            return
        rows, whole = np.concatenate(self._states), len(self._tokens) // PAGE * PAGE
        for start in range(0, whole, PAGE):
            before = self._keys[-1] if self._keys else b""
            self._keys.append(key_of(before, self._tokens[start : start + PAGE]))
        self.past.keep(self._keys, rows[:whole])
        self._tokens, self._states = self._tokens[whole:], [rows[whole:].copy()]


def key_of(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
    """The key of a page with ``tokens`` behind the page with the key ``previous``."""
    return hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest()
