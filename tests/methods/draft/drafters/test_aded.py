"""ADED's card: a normalised, bounded table; without exploration the greedy tri-gram tree."""

from __future__ import annotations

import numpy as np
import pytest
from drafting import Request, certain, draft, hashed, play
from hypothesis import given
from hypothesis import strategies as st

from paradecode.methods.draft.drafters.aded import Aded
from paradecode.methods.draft.trigrams import WIDTH, TriGrams


def test_counts_are_relative_frequencies():
    table = TriGrams()
    table.count([1, 2, 3, 1, 2, 4, 1, 2, 3])
    assert table.of((1, 2)) == pytest.approx({3: 2 / 3, 4: 1 / 3})
    assert list(table.of((1, 2))) == [3, 4]
    assert table.of((9, 9)) == {}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.dictionaries(st.integers(0, 40), st.floats(0.01, 1), min_size=1, max_size=20),
        ),
        max_size=30,
    )
)
def test_the_table_stays_normalised_and_bounded(moves):
    table = TriGrams(most_pairs=3)
    for pair, weights in moves:
        table.move((pair, pair), weights, 0.3)
        known = table.of((pair, pair))
        assert sum(known.values()) == pytest.approx(1.0)
        assert len(known) <= WIDTH
        assert len(table) <= 3


def test_without_exploration_the_greedy_tree():
    """The most likely token first, at every depth."""
    stores: dict[str, object] = {}
    seq = Request([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2], stores=stores)
    tree = draft(Aded(exploration=0.0, noise=0.0), seq, 3)
    assert tree.is_chain
    assert tree.tokens.tolist() == [3, 1, 2]


def test_with_exploration_others_are_tried():
    seq = Request([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2])
    tree = draft(Aded(exploration=4.0, noise=0.0), seq, 8)
    assert set(tree.tokens[tree.parents == -1].tolist()) == {3, 4}


@pytest.mark.parametrize("limit", [1, 3, 8, 20])
def test_the_limit_is_kept_and_runs_repeat(limit):
    text = np.random.default_rng(0).integers(0, 4, 80).tolist()
    trees = [draft(Aded(), Request(text, seed=3), limit) for _ in range(2)]
    assert len(trees[0]) == limit
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()


def test_it_learns_from_the_model():
    stores: dict[str, object] = {}
    target = hashed(16, memory=2)
    first = play("aded", Request([1, 2], 150, stores), target)
    again = play("aded", Request([1, 2], 150, stores), target)
    assert again.tokens_per_step > first.tokens_per_step > 1.0
    assert play("aded", Request([1, 2], 150), target).tokens_per_step == first.tokens_per_step


def test_a_prompt_of_one_token():
    assert play("aded", Request([5], 12), certain(lambda text: 5)).output == [5] * 12
