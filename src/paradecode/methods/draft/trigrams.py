"""A table of tri-grams: which tokens follow two tokens, and how likely each is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.ngram_table import MOST_RANKS, load_ngrams

PAIR_BYTES = 1200
"""Bytes that a pair with ``MOST_RANKS`` tokens takes in CPython."""

MOST_PAIRS = 1 << 15

Pair = tuple[int, int]


class TriGrams:
    """The probability of the next token behind the last two: at most MOST_RANKS tokens for each
    pair.

    The pair unused longest is dropped first.

    Args:
        corpus: gives the distribution of a pair that was not seen yet: token -> probability, the
            most likely first.
    """

    def __init__(
        self, corpus: Callable[[Pair], dict[int, float]] | None = None, most_pairs: int = MOST_PAIRS
    ) -> None:
        self._corpus, self.most_pairs = corpus, most_pairs
        self._table: OrderedDict[Pair, dict[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        return PAIR_BYTES * len(self)

    def of(self, pair: Pair) -> dict[int, float]:
        """Token -> probability, the most likely first; empty for a pair that is not known."""
        known = self._table.get(pair)
        if known is None:
            return {} if self._corpus is None else self._corpus(pair)
        return known

    def count(self, tokens: list[int]) -> None:
        """Enter the pairs of a text that were not seen yet, by relative frequency.

        Where the corpus also knows a pair, the mean of both is taken. The corpus's chances need not
        sum to 1, and a larger sum gives the corpus more weight than the text.
        """
        counts: dict[Pair, dict[int, float]] = {}
        for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
            after = counts.setdefault((a, b), {})
            after[c] = after.get(c, 0.0) + 1.0
        for pair, after in counts.items():
            if pair not in self._table:
                total = sum(after.values())
                self.move(pair, {token: count / total for token, count in after.items()}, 0.5)

    def move(self, pair: Pair, probabilities: dict[int, float], rate: float) -> None:
        """Move a pair's distribution towards ``probabilities``; a new pair takes them over."""
        old = self.of(pair)
        if not old:
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
        best = sorted(weights.items(), key=lambda item: -item[1])[:MOST_RANKS]
        total = sum(weight for _, weight in best)
        self._table[pair] = {token: weight / total for token, weight in best}
        self._table.move_to_end(pair)
        if len(self._table) > self.most_pairs:
            self._table.popitem(last=False)


def trigrams(seq: TokenSequence, table: str) -> TriGrams:
    """The tenant's table, which began with the corpus of this file or name; empty for none.

    Raises:
        InvalidInput: if the file was counted with a larger vocabulary than the model's.
    """

    def counted() -> TriGrams:
        corpus = load_ngrams(table)
        corpus.require(seq.about().vocab_size)
        return TriGrams(corpus.chances)

    return seq.shared(f"aded {table}", counted if table else TriGrams)
