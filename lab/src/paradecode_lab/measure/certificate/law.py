"""The law of the next few tokens, and the test of counts against it.

The law is computed from the model by enumeration. The test is the likelihood-ratio chi-square test
(Wilks 1938). At a false-alarm rate of one in a million Pearson's statistic does not follow the
chi-square law: a cell that expects ten requests raises the alarm fifteen times too often. The
likelihood ratio G follows it within a factor of two (the tests count both exactly).
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
"""A token that stands for every continuation that was not enumerated."""
LEAST = 10.0
"""The least expected number of requests in a cell of the test; more merge more cells."""
FALSE_ALARM = 1e-6
"""Chance that a certificate rejects a method that keeps its promise; higher notices smaller
errors."""
IMPOSSIBLE = 1e9
"""A statistic whose p is 0, and which JSON can hold."""
NOMINAL = FALSE_ALARM / 2
"""The level of the test. The other half of the false alarms pays for the approximation."""


@dataclass(frozen=True)
class Law:
    """Probabilities of cells: whole words, and prefixes followed by ``REST``. They sum to 1."""

    depth: int
    cells: dict[Word, float]

    def cell(self, word: Word) -> Word | None:
        """The cell that a word of ``depth`` tokens falls into; None if it cannot occur."""
        if word in self.cells:
            return word
        for length in range(self.depth - 1, -1, -1):
            prefix = (*word[:length], REST)
            if prefix in self.cells:
                return prefix
        return None

    def group(self, words: Counter[Word]) -> tuple[list[int], list[float]]:
        """Counts and probabilities of cells that expect ``LEAST`` each; the others are pooled.

        The last group is the pool. Words that cannot occur are counted there with probability 0
        when nothing else is.
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
        """Probability of everything that was not enumerated to the end."""
        return sum(share for cell, share in self.cells.items() if cell[-1] == REST)

    @property
    def entropy(self) -> float:
        """Entropy of the cells, in nats."""
        shares = np.array([share for share in self.cells.values() if share > 0.0])
        return float(-(shares * np.log(shares)).sum())


def enumerate_law(
    following: Callable[[Word], NDArray[np.float64]], depth: int, least: float
) -> Law:
    """The law of ``depth`` tokens.

    Args:
        following: word -> float64 [V], the law of the next token.
        least: prefixes and words with a smaller probability stay in their parent's rest.
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
    """G = 2 sum O ln(O / E); ``IMPOSSIBLE`` when something was seen that cannot be."""
    total = sum(seen)
    value = 0.0
    for count, share in zip(seen, shares, strict=True):
        if count and share <= 0.0:
            return IMPOSSIBLE
        if count:
            value += 2.0 * count * log(count / (total * share))
    return max(value, 0.0)


def p_value(value: float, freedom: int) -> float:
    """Chance that a chi-square variable of ``freedom`` degrees is at least ``value``."""
    if freedom <= 0 or value <= 0.0:
        return 1.0
    half = value / 2.0
    # Whole and half integers have finite sums: sum of half^a exp(-half) / Gamma(a + 1).
    start = 0.0 if freedom % 2 == 0 else 0.5
    tail = 0.0 if start == 0.0 else erfc(sqrt(half))
    order = start
    while order < freedom / 2.0:
        tail += exp(order * log(half) - half - lgamma(order + 1.0))
        order += 1.0
    return min(tail, 1.0)
