"""Maps the token ids of a draft model to the token ids of the target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import ArrayLogits, Logits


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The vocabulary of a draft model, and the correspondence of its tokens to the target's.

    The draft model reads each target token as its own tokens with the same text. It proposes only
    tokens that the target has, too (token-level intersection; Timor et al. 2025, arXiv 2502.05202).
    Its LM head may have rows for some of its tokens only (FR-Spec; Zhao et al. 2025, arXiv
    2502.14856).

    Attributes:
        to_target: int32 [D], the target's id of each draft token, or -1.
        pieces: int32; the draft tokens of target token t are ``pieces[starts[t] : starts[t + 1]]``,
            at least one. A token that both vocabularies have maps to itself.
        starts: int64 [T + 1].
        outputs: int32 [O] ascending, the draft token of each row of its LM head; None: row i is
            token i.
        same: True if the draft model and the target have the same tokens.
    """

    to_target: NDArray[np.int32]
    pieces: NDArray[np.int32]
    starts: NDArray[np.int64]
    outputs: NDArray[np.int32] | None = None
    same: bool = False

    @classmethod
    def of_target(cls, size: int, outputs: NDArray[np.int32]) -> Vocabulary:
        """Make the vocabulary of a draft model that reads the target's tokens and proposes some.

        Args:
            size: number of the target's tokens.
            outputs: int32 [O] ascending, the tokens that the draft model proposes.
        """
        every = np.arange(size, dtype=np.int32)
        return cls(every, every, np.arange(size + 1), outputs, same=True)

    def translate(self, tokens: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the draft model's tokens for the text of target tokens ``tokens``, int32 [n]."""
        if len(tokens) == 0:
            return np.empty(0, np.int32)
        if self.same:
            return tokens.astype(np.int32)
        spans = zip(self.starts[tokens], self.starts[tokens + 1], strict=True)
        return np.concatenate([self.pieces[start:end] for start, end in spans])

    def said(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the draft tokens of the given rows of the LM head, int32."""
        return rows if self.outputs is None else self.outputs[rows]

    def widened(self, logits: Logits) -> Logits:
        """Return logits [R, D] of all draft tokens; -inf for tokens that the LM head lacks."""
        if self.outputs is None:
            return logits
        rows, said = logits.shape
        wide = np.full((rows, len(self.to_target)), -np.inf, np.float32)
        wide[:, self.outputs] = logits.gather(np.tile(np.arange(said), (rows, 1)))
        return ArrayLogits(wide)
