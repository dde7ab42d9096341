"""Log-probabilities of output tokens and of the best tokens at their positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.core.logits import Logits
from paradecode.core.trace import TokenLogprob


def token_logprobs(
    logits: Logits, rows: Sequence[int], tokens: Sequence[int], count: int
) -> list[TokenLogprob]:
    """One report for each token.

    Args:
        logits: [R, V], before any processor.
        rows: the row that each token was chosen from.
        count: number of best tokens to report for each row; may be 0.
    """
    chosen = logits.select(rows)
    own = chosen.log_probability(np.array(tokens, np.int32)[:, None])[:, 0]
    best: list[tuple[tuple[int, float], ...]] = [()] * len(own)
    if count:
        ids, _ = chosen.top_k(count)
        values = chosen.log_probability(ids)
        best = [
            tuple(zip(some, of, strict=True))
            for some, of in zip(ids.tolist(), values.tolist(), strict=True)
        ]
    return [TokenLogprob(*each) for each in zip(tokens, own.tolist(), best, strict=True)]
