"""What one tenant's requests have written before."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradecode.methods.draft.history import BREAK

MOST_TOKENS = 1 << 16
"""Past output tokens kept for one tenant: one comparison of them all takes some 10 us."""


REFRESH = 16
"""New tokens of other outputs after which a copy is made again: siblings write at the same time."""


class Past(NamedTuple):
    """A copy of the outputs of others, each followed by BREAK, and how much they had gained."""

    gained: int = -REFRESH
    text: NDArray[np.int32] = np.empty(0, np.int32)


class PastOutputs:
    """The latest outputs of one tenant, forgotten whole, oldest first."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self.most_tokens = most_tokens
        self.tokens = self._written = 0
        self._outputs: OrderedDict[int, array[int]] = OrderedDict()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def nbytes(self) -> int:
        return 4 * self.tokens + 128 * len(self)

    def open(self, most_outputs: int) -> int:
        """Make room for one more output; returns its key for :meth:`extend`."""
        while len(self._outputs) >= max(1, most_outputs):
            self._forget()
        self._opened += 1
        self._outputs[self._opened] = array("i")
        return self._opened

    def extend(self, output: int, tokens: list[int]) -> None:
        """Append to an output; one that was forgotten meanwhile stays so."""
        if output in self._outputs:
            self._outputs[output].extend(tokens)
            self.tokens += len(tokens)
            self._written += len(tokens)
            while self.tokens > self.most_tokens:
                self._forget()

    def others(self, output: int, before: Past) -> Past:
        """All outputs but one as they are now, or ``before`` while they have gained little."""
        gained = self._written - len(self._outputs.get(output, ()))
        if gained < before.gained + REFRESH:
            return before
        pieces = []
        for key, other in self._outputs.items():
            if key != output:
                pieces += [np.array(other, np.int32), np.array([BREAK], np.int32)]
        return Past(gained, np.concatenate(pieces) if pieces else np.empty(0, np.int32))

    def _forget(self) -> None:
        _, output = self._outputs.popitem(last=False)
        self.tokens -= len(output)
