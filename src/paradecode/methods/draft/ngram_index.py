"""A text with an index from its n-grams to the places that follow them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LONGEST = 16
"""Matching tokens that are counted."""
PLACES = 8
"""Occurrences of an n-gram that are compared; of more, the latest ones."""
_MATCHED = (1, 2, 3, 7, 15)


def length_class(matched: int) -> int:
    """0 to 5: whether 1, 2, 3, 4 to 7, 8 to 15, or more tokens match."""
    return bisect_left(_MATCHED, matched)


class NgramIndex:
    """Grows with the text; a look-up costs O(longest n-gram), not O(length).

    Args:
        shortest, longest: bounds on the n-grams that are entered.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self.text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; every n-gram that ends before the last one is entered."""
        text, first = self.text, len(self.text)
        text += tokens
        for end in range(max(first, 1), len(text)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                ends = self._places.setdefault(tuple(text[end - size : end]), [])
                ends.append(end)
                if len(ends) > PLACES:
                    del ends[0]

    def find(self, recent: list[int]) -> tuple[int, int]:
        """Where the end of ``recent`` was followed before, and how many tokens match there.

        The longest n-gram wins; of its occurrences the one before which most text matches, or else
        the latest. The place is 0 when there is none.
        """
        text = self.text
        for size in range(min(self.longest, len(recent)), self.shortest - 1, -1):
            ends = self._places.get(tuple(recent[-size:]))
            if ends is None:
                continue
            best = longest = 0
            for end in reversed(ends):
                most, same = min(end, len(recent), LONGEST), size
                while same < most and text[end - 1 - same] == recent[-1 - same]:
                    same += 1
                if same > longest:
                    best, longest = end, same
            return best, longest
        return 0, 0
