"""The figure of n-gram tables counts the tokens that a table names, and those that are right."""

from __future__ import annotations

from paradecode_lab.training.ngrams.counting import count_ngrams
from tools.figures.ngram_tables import shares


def test_shares() -> None:
    table = count_ngrams([[1, 2, 3, 4]] * 20, 10)
    assert shares(table, [[1, 2, 3, 4]]) == (3, 1.0, 1.0)
    assert shares(table, [[1, 2, 9, 8], [3]]) == (3, 2 / 3, 1 / 3)  # Nothing follows 9.
    assert shares(table, []) == (0, 0.0, 0.0)
