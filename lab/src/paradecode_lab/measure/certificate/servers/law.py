"""Tests whether the draws of two sides follow one law, and says which shifts would be found.

A draw is the text of an answer of a few tokens, cut into words. At a place, which is the beginning
of such answers, the next words of both sides are compared: each likely word by a test of its own
against all others, because a wrong acceptance rule moves single tokens. One more test compares the
whole draws. The tests divide the level ``LEVEL`` of the whole certificate among them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from paradecode_lab.measure.certificate.law import LEAST, p_value, statistic

LEVEL = 1e-4
"""The chance that a certificate rejects two equal laws."""
FOR_WORDS = 0.9
"""The share of the level that the tests of single words have; those of whole draws have half of
the rest, because G follows its law within a factor of two."""
POWER = 0.99
"""The chance with which the smallest shift would be found."""
TESTED_ALONE = 0.05
"""The least share of a word that has a test of its own."""
WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")

Draw = tuple[str, ...]


def words(text: str) -> Draw:
    """Cut a text into words and marks, each with the spaces before it."""
    return tuple(WORD.findall(text))


@dataclass(frozen=True)
class WordTest:
    """The shares of a word on both sides.

    Attributes:
        p: the chance of a difference as large under one law.
        smallest: the smallest shift of this word that would be found with the chance ``POWER``.
    """

    word: str
    plain: float
    drafted: float
    p: float
    smallest: float


@dataclass(frozen=True)
class PlaceTest:
    """The comparison at one place.

    Attributes:
        plain, drafted: number of draws of both sides that reached the place.
        words: the tests of single words; each ``p`` must exceed ``word_level``.
        whole_p: the test of whole draws, which must exceed ``whole_level``.
    """

    plain: int
    drafted: int
    words: tuple[WordTest, ...]
    whole_p: float
    word_level: float
    whole_level: float

    @property
    def same_law(self) -> bool:
        return self.whole_p > self.whole_level and all(
            each.p > self.word_level for each in self.words
        )

    @property
    def smallest(self) -> float:
        """The smallest shift of any tested word that this comparison would have found."""
        return max((each.smallest for each in self.words), default=1.0)


def compare_draws(
    plain: Sequence[Draw], drafted: Sequence[Draw], prefix: Draw, places: int
) -> PlaceTest:
    """Compare the draws of both sides at a place of ``places``, which share the level."""
    one, other = (
        Counter(draw[len(prefix)] if len(draw) > len(prefix) else ""
                for draw in side if draw[: len(prefix)] == prefix)
        for side in (plain, drafted)
    )  # fmt: skip
    n, m = sum(one.values()), sum(other.values())
    pooled = one + other
    likely = [word for word, count in pooled.most_common() if count >= TESTED_ALONE * (n + m)]
    tested = likely[:1] if len(likely) == len(pooled) == 2 else likely
    each = LEVEL / places
    level = FOR_WORDS * each / max(1, len(tested))
    away = NormalDist().inv_cdf(1.0 - level / 2.0) + NormalDist().inv_cdf(POWER)
    tests = []
    for word in tested:
        a, b, share = one[word], other[word], pooled[word] / (n + m)
        shift = away * sqrt(share * (1.0 - share) * (1.0 / n + 1.0 / m)) if n and m else 1.0
        p = equality([a, n - a], [b, m - b])
        tests.append(WordTest(word, a / max(n, 1), b / max(m, 1), p, shift))
    whole = (1.0 - FOR_WORDS) * each / 2.0
    return PlaceTest(n, m, tuple(tests), _whole(plain, drafted), level, whole)


def equality(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the p-value of two rows of counts under one law, by their likelihood ratio."""
    totals = [a + b for a, b in zip(one, other, strict=True)]
    both, freedom = sum(totals), sum(total > 0 for total in totals) - 1
    shares = [total / both for total in totals] if both else []
    return p_value(statistic(one, shares) + statistic(other, shares), freedom)


def _whole(plain: Sequence[Draw], drafted: Sequence[Draw]) -> float:
    """Compare whole draws, of which those that are too rare count as one."""
    one, other = Counter(plain), Counter(drafted)
    least = min(len(plain), len(drafted)) / (len(plain) + len(drafted))
    kept = [draw for draw, count in (one + other).items() if count * least >= LEAST]
    rows = [
        [*(side[draw] for draw in kept), sum(side.values()) - sum(side[draw] for draw in kept)]
        for side in (one, other)
    ]
    return equality(rows[0], rows[1])


def find_split(draws: Sequence[Draw], firsts: Sequence[str]) -> tuple[Draw, float] | None:
    """Choose the place where the next word is least certain; returns it with its share of draws.

    It lies behind the first token, which a server computes with the prompt and never drafts.

    Args:
        firsts: answers of one token.
    """
    best: tuple[float, Draw, float] | None = None
    longest = max(map(len, draws), default=0)
    for length in range(1, longest):
        reached = Counter(draw[:length] for draw in draws if len(draw) > length)
        for prefix, count in reached.items():
            text, share = "".join(prefix), count / len(draws)
            after = [draw[length] for draw in draws if draw[:length] == prefix and draw[length:]]
            top = Counter(after).most_common(1)[0][1] / count
            begun = any(text.startswith(first) for first in firsts if first)
            inside = any(first.startswith(text) and first != text for first in firsts)
            if begun and not inside and share >= LEAST_SHARE and LIKELY <= top <= CERTAIN:
                worth = share * top * (1.0 - top)
                if best is None or worth > best[0]:
                    best = worth, prefix, share
    return best and best[1:]


LEAST_SHARE = 0.4
"""The least share of draws that reach a place."""
LIKELY, CERTAIN = 0.25, 0.75
"""Bounds of the likeliest next word's share. They are inside 0.2 to 0.8, because a pilot's shares
have an error."""
