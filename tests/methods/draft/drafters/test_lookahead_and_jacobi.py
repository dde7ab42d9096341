"""Tests of Jacobi and lookahead decoding: what they learn from rows, and when they stop."""

import numpy as np
import pytest

from drafting import Request, certain, draft, hashed, reply_to
from paradecode.core.tree import ROOT
from paradecode.methods.draft.budgets.auto import AutoBudget
from paradecode.methods.draft.contracts import Offer
from paradecode.methods.draft.drafters.jacobi import Jacobi, Lookahead, RejectedDrafts
from paradecode.methods.draft.verifiers import coupled

LOOP = (3, 9, 4, 7, 12, 5)


def looping(text: list[int]) -> int:
    return LOOP[(LOOP.index(text[-1]) + 1) % len(LOOP)] if text[-1] in LOOP else 3


def step(drafter, seq, target, limit):
    tree = draft(drafter, seq, limit)
    reply = reply_to(seq, tree, target)
    verdict = coupled(seq, tree, reply)
    drafter.observe(seq, tree, reply, verdict)
    seq.commit(verdict)
    return tree, verdict


@pytest.mark.parametrize("level", [2, 3, 5])
@pytest.mark.parametrize("window", [1, 4])
def test_a_full_window_has_the_papers_shape(level, window):
    """Level 0 is a chain; the level-j token of column i is a child of its level j - 1 token."""
    drafter = Lookahead(level=level, window=window, guesses=0, explore="always")
    seq, target = Request([1, 2, 3, 4, 5], 200), hashed(4096, memory=3)
    seq.vocabulary = 4096
    for _ in range(level - 2):
        step(drafter, seq, target, 64)
    levels = [list(row) for row in drafter._levels] or None
    tree = draft(drafter, seq, 64)
    levels = [list(row) for row in drafter._levels]
    assert [len(row) for row in levels] == [window - 1] + [window] * (level - 2)
    assert len(tree) == window * (level - 1) - 1
    for column in range(window):
        node = ROOT
        for token in levels[0][:column]:
            node = tree.child(node, token)
        for row in levels[1:]:
            node = tree.child(node, row[column])
        assert node is not None
        assert (tree.depths[node] if node != ROOT else 0) == column + level - 2


def test_the_window_moves_on_by_one_and_fills_the_pool():
    drafter = Lookahead(level=3, window=4, guesses=2, explore="always")
    seq, target = Request([1, 2, 3, 4, 5], 200), hashed(512, memory=3)
    seq.vocabulary = 512
    step(drafter, seq, target, 64)
    before = [list(row) for row in drafter._levels]
    last = seq.text[-1]
    tree = draft(drafter, seq, 64)
    reply = reply_to(seq, tree, target)
    said = reply.logits.argmax()
    new = [int(said[node + 1]) for node in drafter._columns]
    drafter.observe(seq, tree, reply, coupled(seq, tree, reply))
    assert drafter._levels == [before[1][1:], new]
    firsts = [last, *before[0]]
    for column in range(4):
        assert (before[1][column], new[column]) in drafter._pool.of(firsts[column])


def test_guesses_do_not_touch_the_window():
    """Guesses do not change the rows of the window, because nodes see only their ancestors."""
    seq, target = Request([1, 2, 3, 4, 5], 200), hashed(64, memory=4)
    seq.vocabulary = 64
    drafter = Lookahead(level=3, window=3, guesses=2, explore="always")
    for _ in range(2):
        step(drafter, seq, target, 64)
    alone = reply_to(seq, draft(drafter, seq, 64), target).logits.argmax()
    said = [int(alone[node + 1]) for node in drafter._columns]
    drafter._pool.remember(seq.text[-1], (40, 41))
    tree = draft(drafter, seq, 64)
    more = reply_to(seq, tree, target).logits.argmax()
    assert 40 in tree.tokens
    assert [int(more[node + 1]) for node in drafter._columns] == said


def test_the_pool_is_bounded():
    drafter = Lookahead(guesses=3)
    for i in range(50):
        drafter._pool.remember(7, (i, i))
        drafter._pool.remember(7, (0, 0))
    assert drafter._pool.of(7) == [(0, 0), (49, 49), (48, 48)]


@pytest.mark.parametrize("make", [Lookahead, Jacobi])
def test_rows_that_do_not_pay_are_not_verified(make):
    dear = Request([1, 2, 3], curve=lambda rows: rows)
    drafter = make()
    drafter.begin(Offer(AutoBudget(8)))
    assert len(draft(drafter, dear)) == 0
    assert not drafter.whole
    stubborn = make(explore="always")
    stubborn.begin(Offer(AutoBudget(8)))
    assert len(draft(stubborn, dear)) > 0
    assert stubborn.whole


def test_jacobi_keeps_what_the_model_said():
    drafter, seq, target = Jacobi(), Request([1, 2, 3], 50), hashed(64, memory=3)
    seq.vocabulary = 64
    tree = draft(drafter, seq, 6)
    assert tree.is_chain
    assert len(tree) == 6
    reply = reply_to(seq, tree, target)
    verdict = coupled(seq, tree, reply)
    drafter.observe(seq, tree, reply, verdict)
    accepted = len(verdict.tokens) - 1
    said = reply.logits.argmax()[1:].tolist()
    assert [token for token, _ in drafter._guess] == said[accepted:]


def test_jacobi_survives_a_tree_that_was_cut():
    drafter, seq, target = Jacobi(), Request([1, 2, 3], 50), hashed()
    for keep in (3, 1, 0, 5):
        tree = draft(drafter, seq, 6).clip(keep)
        reply = reply_to(seq, tree, target)
        verdict = coupled(seq, tree, reply)
        drafter.observe(seq, tree, reply, verdict)
        seq.commit(verdict)
    assert np.isfinite(draft(drafter, seq, 6).estimates).all()


def test_a_cut_window_is_left_as_it_was():
    drafter = Lookahead(level=3, window=4, guesses=0, explore="always")
    seq, target = Request([1, 2, 3, 4, 5], 200), hashed()
    step(drafter, seq, target, 64)
    tree = draft(drafter, seq, 64).clip(2)
    levels = [list(row) for row in drafter._levels]
    reply = reply_to(seq, tree, target)
    drafter.observe(seq, tree, reply, coupled(seq, tree, reply))
    assert drafter._levels == levels


def test_rejected_drafts_are_few_and_each_is_there_once():
    kept = RejectedDrafts(2)
    for draft_ in ([1, 2, 3], [7, 2, 5, 6], [1, 2, 3], [7, 2, 5, 6]):
        kept.keep(draft_)
    assert kept.after(2, 9) == [[5, 6], [3]]
    assert kept.after(2, 1) == [[5], [3]]
    kept.keep([4, 2, 3])
    assert kept.after(2, 9) == [[3], [5, 6]]
    assert kept.after(3, 9) == kept.after(8, 9) == RejectedDrafts(0).after(2, 9) == []


def test_what_was_rejected_comes_back_as_a_branch_and_may_win():
    drafter = Jacobi(explore="always", recycle=2)
    seq = Request([*LOOP, 1, 2], 90)
    seq.vocabulary = 32
    drafter._rejected.keep([9, 3, 9, 4, 7, 12, 20, 21])  # Directly after a 3.
    target = certain(looping)
    _, verdict = step(drafter, seq, target, 24)
    assert verdict.tokens[-1] == 3
    tree = draft(drafter, seq, 24)
    assert tree.follow([9, 4, 7, 12]) != []
    assert len(tree) <= 24
    reply = reply_to(seq, tree, target)
    verdict = coupled(seq, tree, reply)
    assert verdict.tokens == [9, 4, 7, 12, 5]
    drafter.observe(seq, tree, reply, verdict)
    seq.commit(verdict)
    rows = [1 + node for node in tree.follow([9, 4, 7, 12, 20, 21])]
    said = reply.logits.argmax()[rows].tolist()
    assert [token for token, _ in drafter._guess] == said[4:] != []
    # The next guesses are predictions after this branch, or new ones.
    for _ in range(6):
        step(drafter, seq, target, 24)
    assert seq.output == [LOOP[i % 6] for i in range(len(seq.output))]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 40, 64])
def test_recycling_keeps_to_the_limit(limit):
    drafter, target = Jacobi(explore="always", recycle=3), hashed(64, memory=2)
    seq = Request([1, 2, 3, 4, 5], 200)
    seq.vocabulary = 64
    for _ in range(12):
        tree, verdict = step(drafter, seq, target, limit)
        assert 0 < len(tree) <= limit
        assert verdict.tokens
