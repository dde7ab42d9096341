"""N-grams by their first token, those used last: what lookahead decoding collects."""

from __future__ import annotations

from collections import OrderedDict

Ngram = tuple[int, ...]
"""The tokens of an n-gram behind its first."""


class NgramPool:
    """At most ``most`` n-grams for each first token; the one used longest ago makes room."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._after: dict[int, OrderedDict[Ngram, None]] = {}

    def of(self, first: int) -> list[Ngram]:
        """The n-grams that begin with a token, the one used last at the front."""
        return list(reversed(self._after.get(first, ())))

    def remember(self, first: int, ngram: Ngram) -> None:
        """Enter an n-gram, or note that it was seen again."""
        known = self._after.setdefault(first, OrderedDict())
        known[ngram] = None
        known.move_to_end(ngram)
        if len(known) > self.most:
            known.popitem(last=False)
