"""What the figure of several outputs counts."""

from __future__ import annotations

import pytest

from paradecode.search.strategies import find_strategy
from tools.figures.several_outputs import WAYS, distinct


def test_ways_can_be_asked_for() -> None:
    assert all(find_strategy(way) for way in WAYS)


@pytest.mark.parametrize(("size", "share"), [(1, 3 / 7), (2, 4 / 5), (4, 1.0), (9, 0.0)])
def test_distinct_shares(size: int, share: float) -> None:
    assert distinct([[1, 2, 1, 3], [1, 2, 3]], size) == share
