"""The trie that remembers kinds, and best-first growth."""

from __future__ import annotations

import numpy as np
import pytest
from drafting import Request, hashed, reply_to, verdict_along
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.growth import (
    Exploration,
    Trie,
    confidence,
    grow,
    guess,
    log_softmax,
)
from paradecode.methods.draft.odds import Odds


class Counting(Odds):
    def __init__(self, kinds: int) -> None:
        super().__init__([0.5] * kinds)
        self.seen: dict[int, tuple[int, int]] = {}

    def update(self, bucket: int, accepted: int, tried: int) -> None:
        self.seen[bucket] = (accepted, tried)
        super().update(bucket, accepted, tried)


def test_equal_paths_are_one_node():
    trie = Trie()
    first = trie.add(ROOT, 5, 0.5)
    assert trie.add(ROOT, 5, 0.9) == first
    assert trie.add(first, 5, 0.9) != first
    tree = trie.tree()
    assert tree.parents.tolist() == [ROOT, 0]
    assert tree.estimates.tolist() == pytest.approx([0.5, 0.9])


def test_books_judged_nodes_only():
    r"""root - 1 (kind 0) - 2 (kind 1)     accepted: 1, then 4
    \ 3 (kind 2) - 4 (kind 3)"""
    trie = Trie()
    one, three = trie.add(ROOT, 1, 0.5, 0), trie.add(ROOT, 3, 0.5, 2)
    trie.add(one, 2, 0.5, 1)
    trie.add(three, 4, 0.5, 3)
    seq = Request([0])
    reply = reply_to(seq, trie.tree(), hashed())
    odds = Counting(4)
    trie.book(odds, trie.tree(), verdict_along(trie.tree(), [1, 4], reply))
    assert odds.seen == {0: (1, 1), 1: (0, 1), 2: (0, 1)}


def test_books_its_own_nodes_in_a_cut_and_mixed_tree():
    trie = Trie()
    trie.add(trie.add(ROOT, 1, 0.5, 0), 2, 0.5, 1)
    trie.add(ROOT, 9, 0.5, 2)  # Cut away by the budget.
    mixed = TokenTree(np.array([7, 1, 8, 2]), np.array([-1, -1, 1, 1]))
    odds = Counting(3)
    reply = reply_to(Request([0]), mixed, hashed())
    trie.book(odds, mixed, verdict_along(mixed, [1, 2, 5], reply))
    assert odds.seen == {0: (1, 1), 1: (1, 1)}
    assert trie.locate(mixed) == {ROOT: ROOT, 1: 0, 3: 1}


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 1000))
def test_growth_takes_the_most_likely_nodes(limit, deepest, seed):
    """The same nodes as the full tree's best ones, when candidates come in order."""
    table = {}

    def candidates(path):
        if path not in table:
            random = np.random.default_rng([seed, *path])
            chances = np.sort(random.uniform(0, 0.5, 3))[::-1]
            table[path] = [(token, float(p), 0) for token, p in enumerate(chances, 1)]
        return table[path]

    tree = grow(limit, deepest, candidates).tree()
    assert len(tree) == min(limit, sum(3**d for d in range(1, deepest + 1)))
    full = grow(10_000, deepest, candidates).tree()
    assert np.allclose(np.sort(tree.reach), np.sort(full.best(limit).reach))
    assert (tree.depths <= deepest).all()


def test_confidence_grows_with_the_probability():
    kinds = [confidence(p) for p in np.linspace(0, 1, 200)]
    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(11))


def test_shared_noise_guesses_the_very_token_that_is_sampled():
    """If the stored distribution is the model's, the first guess is right, at any depth."""
    random = np.random.default_rng(0)
    right = 0
    for trial in range(200):
        seq = Request([1, 2, 3], temperature=0.9, seed=trial)
        logits = random.normal(0, 2, 8).astype(np.float32)
        ids = np.argsort(-logits).astype(np.int32)
        scores = log_softmax(logits[ids][None])[0]
        row = ArrayLogits(logits[None])
        for depth in range(3):
            tokens, chances = guess(seq, depth, ids, scores, True)
            right += tokens[0] == seq.sampler.token(row, 0, [0] * depth)
            assert sum(chances) == pytest.approx(1.0)
            plain, _ = guess(seq, depth, ids, scores, False)
            assert plain == ids.tolist()
    assert right == 600


def test_exploration_stops_where_it_costs_more_than_it_gains():
    free, dear = Request([1], curve=lambda rows: 1.0), Request([1], curve=lambda rows: rows)
    explore = Exploration()
    assert explore.pays(Request([1]), 8)  # Nothing was measured.
    assert explore.pays(free, 8)
    assert not explore.pays(dear, 8)
    for _ in range(400):
        explore.book(0)
    assert not explore.pays(Request([1], curve=lambda rows: 1.0 + 0.01 * rows), 8)
