"""Computes the distribution (law) of the next few tokens, and tests counts against it.

The law is computed from the model by enumeration. The test is the likelihood-ratio chi-square test
(Wilks 1938). At a false-alarm rate of one in a million Pearson's statistic does not follow the
chi-square law: a cell that expects ten requests raises the alarm fifteen times too often. The
likelihood ratio G follows it within a factor of two (the tests of this module count both exactly).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

Word = tuple[int, ...]
REST = -1
"""A token id that stands for all continuations that were not enumerated."""
LEAST = 10.0
"""The least expected number of requests in a cell of the test. A higher value merges more cells."""
FALSE_ALARM = 1e-6
"""Probability that a certificate rejects a method that keeps its promise.

A higher value notices smaller errors, and raises more false alarms.
"""
IMPOSSIBLE = 1e9
"""A statistic whose p-value is 0. It stands for infinity, which JSON cannot hold."""
NOMINAL = FALSE_ALARM / 2
"""The significance level of the test.

It is half of the false-alarm rate, because G follows the chi-square law within a factor of two.
"""


@dataclass(frozen=True)
class Law:
    """Probabilities of cells, which sum to 1.

    A cell is a word of ``depth`` token ids, or a shorter prefix followed by ``REST``.
    """

    depth: int
    cells: dict[Word, float]

    def cell(self, word: Word) -> Word | None:
        """Return the cell of a word of ``depth`` tokens; None if the word has probability 0."""
        if word in self.cells:
            return word
        for length in range(self.depth - 1, -1, -1):
            prefix = (*word[:length], REST)
            if prefix in self.cells:
                return prefix
        return None

    def group(self, words: Counter[Word]) -> tuple[list[int], list[float]]:
        """Return the counts and the probabilities of cells.

        Cells that expect fewer than ``LEAST`` words are pooled. The pool is the last group. Words
        with probability 0 form one more group if they occur.
        """
        total = sum(words.values())
        counts = Counter[Word | None]()
        for word, count in words.items():
            counts[self.cell(word)] += count
        kept = [cell for cell, share in self.cells.items() if total * share >= LEAST]
        kept.sort(key=lambda cell: -self.cells[cell])
        seen = [counts[cell] for cell in kept]
        shares = [self.cells[cell] for cell in kept]
        pooled = sum(share for cell, share in self.cells.items() if cell not in set(kept))
        others = total - sum(seen) - counts[None]
        if total * pooled >= LEAST or not kept:
            seen.append(others)
            shares.append(pooled)
        elif pooled > 0.0:
            seen[-1] += others
            shares[-1] += pooled
        if counts[None]:
            seen.append(counts[None])
            shares.append(0.0)
        return seen, shares

    @property
    def pooled(self) -> float:
        """Probability of all continuations that were not enumerated to the full depth."""
        return sum(share for cell, share in self.cells.items() if cell[-1] == REST)

    @property
    def entropy(self) -> float:
        """Entropy of the cells, in nats."""
        shares = np.array([share for share in self.cells.values() if share > 0.0])
        return float(-(shares * np.log(shares)).sum())


def enumerate_law(
    following: Callable[[Word], NDArray[np.float64]], depth: int, least: float
) -> Law:
    """Enumerate the law of ``depth`` tokens.

    Args:
        following: prefix of token ids -> float64 [V], the probabilities of the next token.
        least: prefixes and words with a smaller probability are not enumerated; they count for
            ``REST`` of the prefix before them.
    """
    cells: dict[Word, float] = {}

    def expand(word: Word, mass: float) -> None:
        p = following(word)
        likely = np.flatnonzero(mass * p >= least)
        for token in likely.tolist():
            longer, share = (*word, token), mass * float(p[token])
            if len(longer) == depth:
                cells[longer] = share
            elif share >= 2.0 * least:
                expand(longer, share)
            else:
                unsplit = (*longer, REST)
                cells[unsplit] = share
        rest = p.copy()
        rest[likely] = 0.0
        if rest.any():
            others = (*word, REST)
            cells[others] = mass * float(rest.sum())

    expand((), 1.0)
    return Law(depth, cells)


def statistic(seen: Sequence[int], shares: Sequence[float]) -> float:
    """Return G = 2 sum O ln(O / E); ``IMPOSSIBLE`` if a cell with probability 0 was counted."""
    total = sum(seen)
    value = 0.0
    for count, share in zip(seen, shares, strict=True):
        if count and share <= 0.0:
            return IMPOSSIBLE
        if count:
            value += 2.0 * count * log(count / (total * share))
    return max(value, 0.0)


def p_value(value: float, freedom: int) -> float:
    """Return the probability that a chi-square variable is at least ``value``.

    ``freedom`` is its number of degrees of freedom.
    """
    if freedom <= 0 or value <= 0.0:
        return 1.0
    half = value / 2.0
    # For whole and half integers the sum is finite: sum of half^a exp(-half) / Gamma(a + 1).
    start = 0.0 if freedom % 2 == 0 else 0.5
    tail = 0.0 if start == 0.0 else erfc(sqrt(half))
    order = start
    while order < freedom / 2.0:
        tail += exp(order * log(half) - half - lgamma(order + 1.0))
        order += 1.0
    return min(tail, 1.0)
