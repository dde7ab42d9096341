"""Tests of CopySpec: it copies from the first occurrence of exactly gamma equal tokens."""

from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, draft
from paradecode.core.decoder import Verdict
from paradecode.core.logits import ArrayLogits
from paradecode.methods.draft.drafters.copyspec import CopySpec

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def scan(text: list[int], gamma: int, limit: int) -> list[int]:
    for end in range(gamma, len(text)):
        if text[end - gamma : end] == text[len(text) - gamma :]:
            return text[end : end + limit]
    return []


@given(texts, st.integers(1, 6), st.integers(1, 10))
def test_equals_a_scan_for_the_first_occurrence(text, gamma, limit):
    tree = draft(CopySpec(gamma), Request(text), limit)
    assert tree.is_chain
    assert tree.tokens.tolist() == scan(text, gamma, limit)


@given(texts, st.lists(texts, max_size=5), st.integers(1, 4))
def test_the_growing_table_equals_a_fresh_one(text, pieces, gamma):
    drafter, seq = CopySpec(gamma), Request(text, 10_000)
    draft(drafter, seq)
    for piece in pieces:
        seq.commit(Verdict(piece, [0] * len(piece), ArrayLogits([[0.0]])))
        assert draft(drafter, seq, 7).tokens.tolist() == scan(seq.text, gamma, 7)
