"""Maps the token ids of a draft model to those of the target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The vocabulary of a draft model with another tokenizer than the target's.

    The draft model reads each target token as its own tokens with the same text. It proposes only
    tokens that the target has, too (token-level intersection; Timor et al. 2025, arXiv 2502.05202).

    Attributes:
        to_target: int32 [D], the target's id of each draft token, or -1.
        pieces: int32; the draft tokens of target token t are ``pieces[starts[t] : starts[t + 1]]``,
            at least one. A token that both have maps to itself.
        starts: int64 [T + 1].
    """

    to_target: NDArray[np.int32]
    pieces: NDArray[np.int32]
    starts: NDArray[np.int64]

    def translate(self, tokens: NDArray[np.integer]) -> NDArray[np.int32]:
        """The draft model's tokens, int32, for the text of target tokens."""
        if len(tokens) == 0:
            return np.empty(0, np.int32)
        spans = zip(self.starts[tokens], self.starts[tokens + 1], strict=True)
        return np.concatenate([self.pieces[start:end] for start, end in spans])
