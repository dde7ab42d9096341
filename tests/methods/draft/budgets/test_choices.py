"""Tests of how many draft tokens are verified, against brute force, and of what is learned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request
from paradecode.core.decoder import Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import KIND_MEMORY, Odds
from paradecode.methods.draft.budgets.auto import OTHERS, AutoBudget, Phase
from paradecode.methods.draft.loop import Budget

LOGITS = ArrayLogits(np.zeros((1, 4)))


def verdict(accepted: int) -> Verdict:
    """Return a verdict that accepts so many tokens of the chain 0, 1, 2, ..."""
    return Verdict([*range(accepted), -1], [0] * (accepted + 1), LOGITS)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 10))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    estimates = [draw(st.floats(0.05, 1.0)) for _ in range(size)]
    return TokenTree(np.arange(size), np.array(parents), np.array(estimates))


@given(trees(), st.integers(0, 12))
def test_fixed_keeps_the_best(tree, count):
    kept = Budget(count).cut(Request([0]), tree)
    assert kept.tokens.tolist() == tree.best(count).tokens.tolist()


@given(trees(), st.integers(1, 12), st.lists(st.floats(0.0, 2.0), min_size=12, max_size=12),
       st.integers(0, 5))  # fmt: skip
def test_cost_curve_maximises_tokens_per_second(tree, count, steps, neighbours):
    curve = np.concatenate([[np.inf], 1.0 + np.cumsum(steps)])
    seq = Request([0], curve=lambda rows: float(curve[rows]))
    seq.neighbours = neighbours
    kept = AutoBudget(count).cut(seq, tree)

    def speed(part: TokenTree) -> float:
        return (1 + OTHERS * neighbours + part.reach.sum()) / curve[1 + len(part)]

    best = max(speed(tree.best(nodes)) for nodes in range(min(count, len(tree)) + 1))
    assert len(kept) <= count
    assert speed(kept) == pytest.approx(best, rel=1e-5)


def test_without_measurements_everything_is_verified():
    tree = TokenTree.chain([1, 2, 3], [0.01] * 3)
    assert len(AutoBudget(8).cut(Request([0]), tree)) == 3
    assert len(AutoBudget(2).cut(Request([0]), tree)) == 2


def test_a_refused_drafter_is_tried_now_and_then():
    budget, seq = AutoBudget(6, patience=5), Request([0], curve=float)
    tree = TokenTree.chain(range(6), [0.5] * 6)
    sizes = [len(budget.cut(seq, tree)) for _ in range(15)]
    assert sizes == [0, 0, 0, 0, 1] * 3
    assert budget.phase is Phase.TRIAL
    assert budget.limit(seq) == 0  # The refusals in a row are not forgotten.
    assert budget.phase is Phase.RESTS


def test_broken_promises_make_it_careful_and_kept_ones_bold():
    budget = AutoBudget(6)
    seq = Request([0], curve=lambda rows: 1.0 + 0.3 * rows)
    tree = TokenTree.chain(range(6), [0.9] * 6)
    start = len(budget.cut(seq, tree))
    for _ in range(60):
        budget.observe(tree, verdict(0))
    careful = len(budget.cut(seq, tree))
    for _ in range(60):
        budget.observe(tree, verdict(6))
    assert careful < start
    assert len(budget.cut(seq, tree)) == start


def test_odds_start_at_the_prior_and_follow_what_happens():
    odds = Odds([0.2, 0.8])
    assert (odds.of(0), odds.of(1)) == pytest.approx((0.2, 0.8))
    odds.update(0, 3, 4)
    assert odds.of(0) == pytest.approx((2 * 0.2 + 3) / (2 + 4))
    assert odds.of(1) == pytest.approx(0.8)
    odds.update(0, 0, 1)
    assert odds.of(0) == pytest.approx((0.4 + 3 * KIND_MEMORY) / (2 + 4 * KIND_MEMORY + 1))
    for _ in range(200):
        odds.update(0, 1, 1)
    assert 0.85 < odds.of(0) < 1  # The memory is finite, so the prior never quite goes.
