"""Tests of token recycling: what it learns in one pass, and that the last accepted row wins."""

import numpy as np
import pytest

from drafting import Request, certain, draft, hashed, play, reply_to, verdict_along
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.drafters.token_recycling import TokenRecycling


def cycle(text: list[int]) -> int:
    return (text[-1] + 1) % 6


def test_a_cyclic_language_is_learnt_in_one_pass():
    """After one pass over the cycle every forward yields the tree's depth plus one tokens."""
    seq = play(
        "token-recycling(depth=6,num_speculative_tokens=64)", Request([0], 76), certain(cycle)
    )
    lengths = [len(step) for step in seq.commits]
    assert lengths[0] == 1
    assert set(lengths[8:-1]) == {7}


def test_a_fresh_table_drafts_nothing():
    assert len(draft(TokenRecycling(), Request([1, 2, 3]))) == 0


def test_rejected_rows_teach_too():
    drafter, seq = TokenRecycling(k=4), Request([1])
    target = hashed(32, memory=1)
    tree = TokenTree(np.array([5, 9]), np.array([-1, 0]))
    reply = reply_to(seq, tree, target)
    drafter.observe(seq, tree, reply, verdict_along(tree, [3], reply))
    table = drafter._table(seq)
    assert np.flatnonzero(table.seen).tolist() == [1, 5, 9]
    for token in (1, 5, 9):
        logits = target([token])
        assert table.ids[token].tolist() == np.argsort(-logits, kind="stable")[:4].tolist()
        assert np.exp(table.scores[token]).sum() == pytest.approx(1.0, abs=1e-5)


def test_of_rows_with_one_token_the_last_accepted_is_kept():
    drafter, seq = TokenRecycling(k=1), Request([1])
    target = certain(lambda text: 10 + len(text))
    tree = TokenTree(np.array([1, 1, 4, 1]), np.array([-1, 0, -1, 2]))
    reply = reply_to(seq, tree, target)
    drafter.observe(seq, tree, reply, verdict_along(tree, [1, 8], reply))
    assert drafter._table(seq).ids[1].tolist() == [12]  # Of "1 1", not of "1" or "1 4 1".


def test_sampled_tokens_are_guessed_with_their_own_noise():
    """Sampled tokens of a language of pairs are nearly as predictable as greedy ones."""
    target = hashed(8, memory=1)
    rates = {}
    for verifier in ("coupled", "nss"):
        seq = Request([1], 400, temperature=1.0, vocabulary=8)
        play(f"token-recycling(verifier={verifier},num_speculative_tokens=4)", seq, target)
        rates[verifier] = seq.tokens_per_step
    assert rates["coupled"] > 4
    assert rates["coupled"] > rates["nss"] + 0.5


def test_tenants_and_sizes_have_tables_of_their_own():
    stores: dict[str, object] = {}
    play("token-recycling", Request([0], 20, stores), certain(cycle))
    assert len(draft(TokenRecycling(), Request([0], 20, stores))) > 0
    assert len(draft(TokenRecycling(k=3), Request([0], 20, stores))) == 0
    assert len(draft(TokenRecycling(), Request([0], 20))) == 0


def test_a_vocabulary_smaller_than_k():
    seq = play("token-recycling(k=32)", Request([0], 20, vocabulary=6), certain(cycle, 6))
    assert seq.output == [(i + 1) % 6 for i in range(20)]
