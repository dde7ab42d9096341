"""How another model's token ids correspond to the target's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a draft model that has a tokenizer of its own.

    The draft model reads each target token as the tokens that spell the same text, and proposes
    those of its tokens that the target has as well (token-level intersection; Timor et al. 2025,
    arXiv 2502.05202).

    Attributes:
        to_target: int32 [D], the target's id of each of its tokens, or -1.
        pieces: int32, its spelling of target token t is ``pieces[starts[t] : starts[t + 1]]``,
            never empty; of a token that both have it is that token.
        starts: int64 [T + 1].
    """

    to_target: NDArray[np.int32]
    pieces: NDArray[np.int32]
    starts: NDArray[np.int64]

    def translate(self, tokens: NDArray[np.integer]) -> NDArray[np.int32]:
        """int32: target tokens in its spelling."""
        if len(tokens) == 0:
            return np.empty(0, np.int32)
        spans = zip(self.starts[tokens], self.starts[tokens + 1], strict=True)
        return np.concatenate([self.pieces[start:end] for start, end in spans])
