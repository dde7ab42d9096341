"""The enumerated law, and the cells that words are counted in."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from paradecode_lab.measure.certificate.law import LEAST, REST, Law, enumerate_law


def following(word: tuple[int, ...]) -> np.ndarray:
    """Four tokens; which is likely depends on the word; token 3 is impossible."""
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
