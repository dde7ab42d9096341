"""Tests of ADED's table (normalised, bounded) and of its search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, certain, draft, play
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.aded import Aded, TriGrams
from paradecode.methods.draft.ngram_table import MOST_RANKS, load_ngrams
from paradecode_lab.training.ngrams.counting import count_ngrams


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
        assert len(known) <= MOST_RANKS
        assert len(table) <= 3


@pytest.fixture
def corpus(tmp_path):
    """Return a file of ``train ngram-table`` in which 3 follows 1 2, and less often six others."""
    texts = [[1, 2, 3, 4]] * 40 + [[1, 2, other, 4] for other in range(10, 16) for _ in range(10)]
    path = str(tmp_path / "corpus.ngrams")
    count_ngrams(texts, 32, 12).save(path)
    return path


def test_a_corpus_is_believed_until_the_model_says_otherwise(corpus):
    table = TriGrams(load_ngrams(corpus).chances)
    said = table.of((1, 2))
    assert list(said) == [3, *range(10, 16)]
    assert said[3] == pytest.approx(0.4, abs=0.1)
    assert said[15] == pytest.approx(0.1, abs=0.05)
    assert table.of((9, 2)) == load_ngrams(corpus).chances((2,))  # Unseen: its last token's.
    assert table.of((9, 9)) == {}
    for _ in range(20):
        table.move((1, 2), {7: 0.9, 3: 0.1}, 0.3)
    assert next(iter(table.of((1, 2)))) == 7
    assert len(table) == 1


def test_a_text_counts_as_much_as_the_corpus(corpus):
    table = TriGrams(load_ngrams(corpus).chances)
    table.count([1, 2, 5, 1, 2, 5])
    said = table.of((1, 2))
    assert next(iter(said)) == 5
    assert said[5] == pytest.approx(0.5 / 0.825)  # The corpus leaves mass open: dropped.
    assert said[3] == pytest.approx(0.175 / 0.825)


def test_the_first_draft_comes_from_the_corpus(corpus):
    seq = Request([1, 2])
    assert len(draft(Aded(), seq, 8)) == 0
    tree = draft(Aded(table=corpus), seq, 8)
    assert tree.tokens[0] == 3
    assert tree.tokens[tree.parents == 0].tolist() == [4]


def test_requests_with_other_tables_learn_apart(corpus):
    stores: dict[str, object] = {}
    play("aded", Request([1, 2], 30, stores), certain(lambda text: 5))
    assert draft(Aded(table=corpus), Request([1, 2], stores=stores), 1).tokens.tolist() == [3]


def test_tables_that_do_not_fit_are_refused(corpus, tmp_path):
    with pytest.raises(InvalidInput, match="table"):
        draft(Aded(table=corpus), Request([1, 2], vocabulary=16), 8)
    with pytest.raises(InvalidInput, match="table"):
        Aded(table=str(tmp_path / "none.ngrams"))


def test_without_exploration_the_greedy_tree():
    """Without exploration the draft follows the most likely token at every depth."""
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
