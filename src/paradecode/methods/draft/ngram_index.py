"""An index of a text's n-grams, which finds earlier occurrences of the text's end.

The native core has the same index in ``csrc/ngram.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LONGEST = 16
"""The most tokens before a position that are compared with the end of the text."""
PLACES = 8
"""The most occurrences of an n-gram that are compared. If there are more, the latest ones are."""
SIZES = (1, 2, 3, 4, 8, 16, 32)
"""Lengths of the n-grams that are indexed, besides the shortest.

To find an n-gram of another length, the occurrences of the next shorter indexed length are compared
with the text's end.
"""
MOST_COMPARED = 256
"""The most occurrences of an indexed n-gram that are searched for a longer match."""
MOST_NEW = 4096
"""The most tokens that are indexed in one step.

This takes about 20 ms. A higher value would let other requests wait longer.
"""
_MATCHED = (1, 2, 3, 7, 15)


def length_class(matched: int) -> int:
    """Return the class, 0 to 5, of a number of matching tokens.

    The first five classes end at the numbers in ``_MATCHED``.
    """
    return bisect_left(_MATCHED, matched)


class NgramIndex:
    """An index of n-grams that grows with the text.

    A lookup takes O(longest n-gram) time, whatever the length of the text.

    Args:
        shortest, longest: least and most tokens of the n-grams that are looked up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self.text: list[int] = []
        sizes = [shortest, *(size for size in SIZES if shortest < size <= longest)]
        # For each indexed length: the longest n-gram it serves, and the most stored positions.
        ends = [*(size - 1 for size in sizes[1:]), longest]
        self._sizes = [
            (size, most, PLACES if size == most else MOST_COMPARED)
            for size, most in zip(sizes, ends)
        ]
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._next = 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, and index the n-grams that end before the last token.

        At most :data:`MOST_NEW` tokens are indexed now. The rest of a long text is left for the
        next calls.
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
        """Return the position after an earlier occurrence of ``recent``'s end, and its length.

        The longest n-gram that occurs is used. Among its occurrences the one with the most matching
        tokens before it is returned; if several match equally, the latest one. The position is 0 if
        there is none. The second result is the number of matching tokens.
        """
        for size, most, _ in reversed(self._sizes):
            ends = self._places.get(tuple(recent[-size:])) if size <= len(recent) else None
            if ends is None:
                continue
            if size < most:  # The longest match may have a length that is not indexed.
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
        """Return how many tokens before ``end`` equal the end of ``recent``, up to ``most``.

        The first ``same`` tokens are known to be equal.
        """
        text, most = self.text, min(end, len(recent), most)
        while same < most and text[end - 1 - same] == recent[-1 - same]:
            same += 1
        return same
