"""Tests the exact distribution, the cells in which outputs are counted, and the test of counts."""

from collections import Counter
from itertools import product
from math import exp, lgamma, log

import numpy as np
import pytest

from paradecode_lab.measure.certificate.law import (
    FALSE_ALARM,
    LEAST,
    NOMINAL,
    REST,
    Law,
    enumerate_law,
    p_value,
    statistic,
)


def following(word: tuple[int, ...]) -> np.ndarray:
    """Return the probabilities of four tokens. They depend on the word, and token 3 has none."""
    return np.append(np.roll([0.7, 0.25, 0.05], sum(word)), 0.0)


def probability(word: tuple[int, ...]) -> float:
    return float(np.prod([following(word[:at])[token] for at, token in enumerate(word)]))


@pytest.mark.parametrize("least", [0.5, 0.1, 0.02, 1e-9])
def test_cells_add_up_and_cover_every_word(least: float) -> None:
    law = enumerate_law(following, 3, least)
    assert sum(law.cells.values()) == pytest.approx(1.0)
    masses = Counter[tuple[int, ...]]()
    for word in product(range(3), repeat=3):
        cell = law.cell(word)
        assert cell is not None
        masses[cell] += probability(word)
    assert dict(masses) == pytest.approx(law.cells)
    assert all(len(cell) == 3 or cell[-1] == REST for cell in law.cells)


def test_impossible_words_have_no_cell() -> None:
    law = enumerate_law(following, 2, 1e-9)
    assert law.cell((3, 0)) is None
    seen, shares = law.group(Counter({(0, 0): 99, (3, 0): 1}))
    assert (seen[-1], shares[-1]) == (1, 0.0)


def test_groups_expect_enough_and_lose_nothing() -> None:
    law = enumerate_law(following, 3, 1e-9)
    words = Counter({word: round(400 * probability(word)) for word in product(range(3), repeat=3)})
    seen, shares = law.group(words)
    assert sum(seen) == sum(words.values())
    assert sum(shares) == pytest.approx(1.0)
    assert len(seen) > 5
    assert min(shares) * sum(seen) >= LEAST


def test_few_counts_make_one_group() -> None:
    law = Law(1, {(0,): 0.5, (1,): 0.5})
    assert law.group(Counter({(0,): 3})) == ([3], [1.0])
    assert law.entropy == pytest.approx(np.log(2))
    assert law.pooled == 0.0


@pytest.mark.parametrize(("value", "freedom", "p"), [
    (3.841459, 1, 0.05), (5.991465, 2, 0.05), (18.307038, 10, 0.05), (24.995790, 15, 0.05),
    (10.827566, 1, 0.001), (23.928127, 1, 1e-6), (2 * 13.815511, 2, 1e-6),
])  # fmt: skip
def test_known_values(value: float, freedom: int, p: float) -> None:
    assert p_value(value, freedom) == pytest.approx(p, rel=1e-4)


def test_many_degrees_of_freedom() -> None:
    assert p_value(400.0, 400) == pytest.approx(0.4906, abs=1e-3)
    assert p_value(1e6, 7) == 0.0
    assert p_value(0.0, 7) == p_value(5.0, 0) == 1.0


def test_the_statistic() -> None:
    assert statistic([10, 30], [0.25, 0.75]) == 0.0
    assert statistic([20, 20], [0.25, 0.75]) == pytest.approx(2 * (20 * log(2) + 20 * log(2 / 3)))
    for freedom in (1, 2, 500):
        assert p_value(statistic([10, 1], [1.0, 0.0]), freedom) == 0.0


def binomial(n: int, k: int, share: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(share) + (n - k) * log(1 - share))


def pearson(seen: list[int], shares: list[float]) -> float:
    total = sum(seen)
    return sum((o - total * s) ** 2 / (total * s) for o, s in zip(seen, shares))


def false_alarms(test, n: int, share: float) -> float:
    shares = [share, 1 - share]
    alarms = (k for k in range(n + 1) if p_value(test([k, n - k], shares), 1) <= NOMINAL)
    return sum(binomial(n, k, share) for k in alarms)


@pytest.mark.parametrize("n", [1000, 4000])
@pytest.mark.parametrize("expected", [10, 25, 100, 500])
def test_false_alarms_are_as_rare_as_promised(n: int, expected: int) -> None:
    """The false-alarm rate is computed exactly over all outcomes of two cells.

    The smallest expected count is the smallest that the law keeps in a cell of its own.
    """
    assert false_alarms(statistic, n, expected / n) <= FALSE_ALARM


def test_pearson_would_not_do() -> None:
    assert false_alarms(pearson, 1000, 10 / 1000) > 10 * FALSE_ALARM
