"""A text with an index from its n-grams to the places that follow them.

The native core has the same in ``csrc/ngram.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LONGEST = 16
"""The most matching tokens that are counted before a place."""
PLACES = 8
"""Occurrences of an n-gram that are compared; if there are more, the latest ones."""
SIZES = (1, 2, 3, 4, 8, 16, 32)
"""Lengths of n-grams that are entered, beside the shortest; lengths between are found by
comparing."""
MOST_COMPARED = 256
"""Occurrences of an entered n-gram among which longer ones are searched."""
MOST_NEW = 4096
"""The most tokens that are entered in one step; it takes about 20 ms, and more would let others
wait longer."""
_MATCHED = (1, 2, 3, 7, 15)


def length_class(matched: int) -> int:
    """The class, 0 to 5, of a match: 1, 2, 3, 4 to 7, 8 to 15, or more tokens."""
    return bisect_left(_MATCHED, matched)


class NgramIndex:
    """An index that grows with the text; a look-up costs O(longest n-gram), not O(length of the
    text).

    Args:
        shortest, longest: bounds on the n-grams that are looked up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self.text: list[int] = []
        sizes = [shortest, *(size for size in SIZES if shortest < size <= longest)]
        # Of each length: up to which one its entries serve, and how many of them are kept.
        ends = [*(size - 1 for size in sizes[1:]), longest]
        self._sizes = [
            (size, most, PLACES if size == most else MOST_COMPARED)
            for size, most in zip(sizes, ends)
        ]
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._next = 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, and enter the n-grams that end before the last one.

        A part of a long text is left for the next calls.
        """
        text, places = self.text, self._places
        text += tokens
        first = self._next
        self._next = max(first, min(len(text), first + MOST_NEW))
        for end in range(first, self._next):
            for size, _, kept in self._sizes:
                if size > end:
                    break
                ends = places.setdefault(tuple(text[end - size : end]), [])
                ends.append(end)
                if len(ends) > kept:
                    del ends[0]

    def find(self, recent: list[int]) -> tuple[int, int]:
        """The place behind an earlier occurrence of the end of ``recent``, and how many tokens
        match there.

        The longest n-gram wins. Among its occurrences, the one with the most matching text before
        it wins, or else the latest. The place is 0 when there is none.
        """
        for size, most, _ in reversed(self._sizes):
            ends = self._places.get(tuple(recent[-size:])) if size <= len(recent) else None
            if ends is None:
                continue
            if size < most:  # The longest n-gram may be one that was not entered.
                found = [self._matching(recent, end, size, most) for end in ends]
                size = max(found)
                ends = [end for end, same in zip(ends, found) if same == size]
            best = longest = 0
            for end in reversed(ends[-PLACES:]):
                same = self._matching(recent, end, size, LONGEST)
                if same > longest:
                    best, longest = end, same
            return best, longest
        return 0, 0

    def _matching(self, recent: list[int], end: int, same: int, most: int) -> int:
        """How many tokens before a place equal the last ones of ``recent``; ``same`` of them are
        known to."""
        text, most = self.text, min(end, len(recent), most)
        while same < most and text[end - 1 - same] == recent[-1 - same]:
            same += 1
        return same
