"""A table of tri-grams: which tokens follow two tokens, and how likely each is."""

from __future__ import annotations

from collections import OrderedDict

WIDTH = 12
"""Tokens kept after each pair."""

PAIR_BYTES = 1200
"""What a pair with ``WIDTH`` tokens takes in CPython."""

MOST_PAIRS = 1 << 15

Pair = tuple[int, int]


class TriGrams:
    """P(next token | last two): at most WIDTH tokens a pair; the pair unused longest goes first."""

    def __init__(self, most_pairs: int = MOST_PAIRS) -> None:
        self.most_pairs = most_pairs
        self._table: OrderedDict[Pair, dict[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        return PAIR_BYTES * len(self)

    def of(self, pair: Pair) -> dict[int, float]:
        """Token -> probability, the most likely first; empty for a pair that is not known."""
        return self._table.get(pair, {})

    def count(self, tokens: list[int]) -> None:
        """Enter the pairs of a text that are not known yet, by relative frequency."""
        counts: dict[Pair, dict[int, float]] = {}
        for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
            after = counts.setdefault((a, b), {})
            after[c] = after.get(c, 0.0) + 1.0
        for pair, after in counts.items():
            if pair not in self._table:
                self._set(pair, after)

    def move(self, pair: Pair, probabilities: dict[int, float], rate: float) -> None:
        """Move a pair's distribution towards ``probabilities``; a new pair takes them over."""
        old = self._table.get(pair)
        if old is None:
            self._set(pair, probabilities)
            return
        self._set(
            pair,
            {
                token: (1.0 - rate) * old.get(token, 0.0) + rate * probabilities.get(token, 0.0)
                for token in {**old, **probabilities}
            },
        )

    def _set(self, pair: Pair, weights: dict[int, float]) -> None:
        best = sorted(weights.items(), key=lambda item: -item[1])[:WIDTH]
        total = sum(weight for _, weight in best)
        self._table[pair] = {token: weight / total for token, weight in best}
        self._table.move_to_end(pair)
        if len(self._table) > self.most_pairs:
            self._table.popitem(last=False)
