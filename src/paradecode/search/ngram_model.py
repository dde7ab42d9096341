"""How often a token follows the last few tokens, counted in a text, or in a table where that has
none."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from paradecode.methods.draft.ngram_table import NgramTable

WEIGHTS = (0.01, 0.04, 0.15, 0.18, 0.12)
"""Weights of the shares behind the last 1 to 5 tokens. They are Superposed Decoding's, which
does not divide by their sum."""


class NgramModel:
    """Shares of the tokens that followed each run of 1 to 5 tokens.

    Args:
        text: token ids that are counted.
        table: a table for runs that the text does not have, with the chance that it is right.
    """

    def __init__(self, text: Sequence[int], table: NgramTable | None = None) -> None:
        self._table = table
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for end in range(1, len(text)):
            for size in range(1, min(len(WEIGHTS), end) + 1):
                self._after[tuple(text[end - size : end])][text[end]] += 1

    def after(self, context: Sequence[int]) -> dict[int, float]:
        """token -> the weighted sum of its shares behind the last 1 to 5 tokens, if above 0."""
        mixed: dict[int, float] = defaultdict(float)
        for size, weight in enumerate(WEIGHTS[: len(context)], 1):
            run = tuple(context[-size:])
            counts = self._after.get(run)
            if counts is not None:
                seen = sum(counts.values())
                for token, times in counts.items():
                    mixed[token] += weight * times / seen
            elif self._table is not None and (found := self._table.after(run)) is not None:
                token, bucket = found
                mixed[token] += weight * self._table.priors[bucket]
        return {token: value for token, value in mixed.items() if value > 0}
