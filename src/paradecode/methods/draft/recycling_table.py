"""The table of token recycling: the tokens most likely to follow each token."""

from __future__ import annotations

import numpy as np

PAGE_BYTES = 4096


class RecyclingTable:
    """The k tokens most likely to follow each token, and their log-probabilities among the k.

    Zeros are not touched before they are written, so memory grows with the tokens that were seen.

    Attributes:
        seen: bool [vocabulary], which tokens have successors.
        ids: int32 [vocabulary, k]; scores: float32 [vocabulary, k].
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.seen = np.zeros(vocabulary, bool)
        self.ids = np.zeros((vocabulary, k), np.int32)
        self.scores = np.zeros((vocabulary, k), np.float32)

    @property
    def nbytes(self) -> int:
        """The most that can have been touched."""
        whole = self.ids.nbytes + self.scores.nbytes
        return self.seen.nbytes + min(whole, 2 * PAGE_BYTES * int(self.seen.sum()))
