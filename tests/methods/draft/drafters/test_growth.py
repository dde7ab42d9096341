"""Tests of trees that store kinds of evidence, and of best-first growth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, hashed, reply_to, verdict_along
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import Odds, kind_of
from paradecode.methods.draft.budgets.auto import AutoBudget
from paradecode.methods.draft.budgets.estimated import FixedBudget
from paradecode.methods.draft.drafters.jacobi import Exploration
from paradecode.methods.draft.growth import grow, guess, log_softmax
from paradecode.methods.draft.model_free import RatedTree


class Counting(Odds):
    def __init__(self, kinds: int) -> None:
        super().__init__([0.5] * kinds)
        self.seen: dict[int, tuple[int, int]] = {}

    def update(self, bucket: int, accepted: int, tried: int) -> None:
        self.seen[bucket] = (accepted, tried)
        super().update(bucket, accepted, tried)


def test_equal_paths_are_one_node():
    draft = RatedTree(Odds([0.5, 0.9]))
    first = draft.rate(ROOT, 5, 0)
    assert draft.rate(ROOT, 5, 1) == first
    assert draft.rate(first, 5, 1) != first
    tree = draft.tree()
    assert tree.parents.tolist() == [ROOT, 0]
    assert tree.estimates.tolist() == pytest.approx([0.5, 0.9])


def test_books_judged_nodes_only():
    """A node is counted only if its parent was accepted.

    The root has two branches: token 1, then 2; and token 3, then 4. Each node has its own kind of
    evidence. The target emits 1 and then 4, so the node of token 4 below 3 is not judged.
    """
    odds = Counting(4)
    draft = RatedTree(odds)
    one, three = draft.rate(ROOT, 1, 0), draft.rate(ROOT, 3, 2)
    draft.rate(one, 2, 1)
    draft.rate(three, 4, 3)
    tree = draft.tree()
    draft.book(tree, verdict_along(tree, [1, 4], reply_to(Request([0]), tree, hashed())))
    assert odds.seen == {0: (1, 1), 1: (0, 1), 2: (0, 1)}


def test_books_its_own_nodes_in_a_cut_and_mixed_tree():
    odds = Counting(3)
    draft = RatedTree(odds)
    draft.rate(draft.rate(ROOT, 1, 0), 2, 1)
    draft.rate(ROOT, 9, 2)  # Cut away by the budget.
    mixed = TokenTree(np.array([7, 1, 8, 2]), np.array([-1, -1, 1, 1]))
    reply = reply_to(Request([0]), mixed, hashed())
    draft.book(mixed, verdict_along(mixed, [1, 2, 5], reply))
    assert odds.seen == {0: (1, 1), 1: (1, 1)}
    assert odds.totals == [(1, 1), (1, 1), (0, 0)]
    assert mixed.locate(draft.child) == {ROOT: ROOT, 1: 0, 3: 1}


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 1000))
def test_growth_takes_the_most_likely_nodes(limit, deepest, seed):
    """Growth finds the best nodes of the full tree if candidates come in order."""
    chances: list[float] = []
    table = {}

    def candidates(path):
        if path not in table:
            random = np.random.default_rng([seed, *path])
            first = len(chances)
            chances.extend(np.sort(random.uniform(0, 0.5, 3))[::-1].tolist())
            table[path] = [(token, first + token - 1) for token in (1, 2, 3)]
        return table[path]

    class Given(Odds):
        def of(self, kind):
            return chances[kind]

    def grown(limit):
        draft = RatedTree(Given([]))
        grow(draft, limit, deepest, candidates)
        return draft.tree()

    tree = grown(limit)
    assert len(tree) == min(limit, sum(3**d for d in range(1, deepest + 1)))
    full = grown(10_000)
    assert np.allclose(np.sort(tree.reach), np.sort(full.best(limit).reach))
    assert (tree.depths <= deepest).all()


def test_kinds_grow_with_the_probability():
    kinds = [kind_of(p) for p in np.linspace(0, 1, 200)]
    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(11))


def test_shared_noise_guesses_the_very_token_that_is_sampled():
    """If stored and true distributions are equal, shared noise makes every first guess right."""
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
    explore, auto = Exploration(), AutoBudget(8)
    assert explore.pays(Request([1]), auto, 8, "auto")  # Nothing was measured.
    assert explore.pays(free, auto, 8, "auto")
    assert not explore.pays(dear, auto, 8, "auto")
    assert explore.pays(dear, auto, 8, "always")
    assert explore.pays(dear, FixedBudget(8), 8, "auto")
    for _ in range(400):
        explore.book(0)
    assert not explore.pays(Request([1], curve=lambda rows: 1.0 + 0.01 * rows), auto, 8, "auto")
