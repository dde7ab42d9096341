"""Follows a source text while the output departs from it and comes back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOST, SUPPOSED, AMBIGUOUS, FOUND, FOLLOWING, STEADY = range(6)
"""Reasons why a place in the source may be the right one, the weakest first. They are the kinds of
evidence of the drafters that use an alignment."""


class Alignment:
    """The place in ``source`` that the output has reached.

    Input-guided aggressive decoding (Ge et al. 2022, arXiv 2205.10350): as long as the output
    copies the source, the place moves on. After a departure, the new place is where the last n
    output tokens occur exactly once in the source, for the smallest n up to ``max_ngram``. Two
    rules are not in the paper. If the tokens occur several times, the first place behind the old
    one is taken, or else the last one. If they do not occur, one token counts as replaced.

    Args:
        source: int32 [s].
        max_ngram: most tokens that are compared.
        start: the first place, or None when the source may begin anywhere.
    """

    def __init__(self, source: NDArray[np.int32], max_ngram: int, start: int | None) -> None:
        self.source, self.max_ngram = source, max_ngram
        self.reason = LOST if start is None else FOUND
        self.place = start or 0
        self._begun = start is not None
        self._copied = 0

    def advance(self, text: NDArray[np.int32], count: int) -> None:
        """Move on: the last ``count`` tokens of ``text`` are new output."""
        for end in range(len(text) - count + 1, len(text) + 1):
            known = self.reason != LOST and self.place < len(self.source)
            if known and self.source[self.place] == text[end - 1]:
                self._copied += 1
                self.place += 1
                self.reason = STEADY if self._copied > 3 else FOLLOWING
            else:
                self._copied = 0
                self._search(text[:end])

    def draft(self, limit: int) -> tuple[list[int], list[int]]:
        """The next tokens of the source, at most ``limit``, and the reason for each; empty when
        lost.

        Each reason takes the tokens before it for right: behind them, a token follows a copy.
        """
        if self.reason == LOST:
            return [], []
        tokens = self.source[self.place : self.place + limit].tolist()
        copied = range(self._copied, self._copied + len(tokens))
        reasons = [self.reason, *(FOLLOWING if count <= 3 else STEADY for count in copied[1:])]
        return tokens, reasons[: len(tokens)]

    def _search(self, text: NDArray[np.int32]) -> None:
        ends = np.flatnonzero(self.source == text[-1])
        for size in range(2, min(self.max_ngram, len(text)) + 1):
            if len(ends) < 2:
                break
            longer = ends[ends >= size - 1]
            longer = longer[self.source[longer - size + 1] == text[-size]]
            if len(longer) == 0:
                break
            ends = longer
        if len(ends) == 0:
            # The output said something else in place of one token, or has left the source.
            supposed = self.reason not in (LOST, SUPPOSED)
            self.reason = SUPPOSED if supposed else LOST
            self.place += supposed
            return
        ahead = ends[ends >= self.place] if self._begun else ends[:0]
        self._begun = True
        self.reason = FOUND if len(ends) == 1 else AMBIGUOUS
        self.place = int(ahead[0] if len(ahead) else ends[-1]) + 1
