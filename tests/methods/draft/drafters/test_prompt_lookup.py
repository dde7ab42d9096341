"""Tests of prompt lookup: what it proposes, how long, and from where."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, certain, play
from paradecode.core.decoder import Reply, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.drafters.prompt_lookup import LookupTree, PromptLookup
from paradecode.methods.draft.ngram_index import LONGEST, MOST_NEW, PLACES, NgramIndex
from paradecode.methods.specs import parse

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def propose(drafter: PromptLookup, seq: Request, limit: int) -> TokenTree:
    steps = drafter.propose(seq, limit)
    with pytest.raises(StopIteration) as done:
        next(steps)  # It asks nothing of the engine.
    return done.value.value


def scan(text: list[int], limit: int, longest: int, shortest: int) -> list[int]:
    """Apply prompt lookup's rule by brute force.

    The longest suffix comes first. Among its last occurrences the one with the most matching text
    before it wins, or else the latest. A copy may run into itself.
    """
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        suffix = text[len(text) - size :]
        ends = [end for end in range(size, len(text)) if text[end - size : end] == suffix]
        if ends:
            end = max(ends[-PLACES:], key=lambda end: (matching(text, end), end))
            period = text[end:]
            return [period[i % len(period)] for i in range(limit)]
    return []


def matching(text: list[int], end: int) -> int:
    """Count how many tokens before ``end`` equal the last ones, up to the counted maximum."""
    return max(
        size
        for size in range(min(end, LONGEST) + 1)
        if text[end - size : end] == text[len(text) - size :]
    )


@given(texts, st.integers(1, 10), st.integers(1, 5), st.integers(1, 5))
def test_equals_a_brute_force_scan(text, limit, longest, shortest):
    shortest = min(shortest, longest)
    tree = propose(PromptLookup(longest, shortest), Request(text), limit)
    assert tree.is_chain
    assert tree.tokens.tolist() == scan(text, limit, longest, shortest)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=12), st.integers(1, 32), st.integers(1, 32),
)  # fmt: skip
def test_lengths_that_are_not_entered_are_found_by_comparing(pieces, order, longest, shortest):
    text = [*pieces[0], *(token for place in order for token in pieces[place % len(pieces)])]
    shortest = min(shortest, longest)
    tree = propose(PromptLookup(longest, shortest), Request(text), 3)
    assert tree.tokens.tolist() == scan(text, 3, longest, shortest)


def test_few_lengths_are_entered():
    index = NgramIndex(1, 32)
    index.extend(range(1000))
    assert sum(map(len, index._places.values())) <= 7 * 1000
    assert len(index._sizes) == 7


@pytest.mark.parametrize("method", [PromptLookup, LookupTree])
def test_a_long_prompt_is_entered_in_parts(method):
    """A long prompt is indexed over several steps, so that other requests need not wait.

    Until then drafts come from the part of the prompt that is indexed.
    """
    random = np.random.default_rng(0)
    once = random.integers(0, 1 << 20, 3 * MOST_NEW)
    early, between, late = once[100:120], once[5000:5020], once[-40:-20]
    seq = Request([*once, *once[-80:-72]], 1000, vocabulary=1 << 20)
    drafter = method()
    assert len(propose(drafter, seq, 4)) == 0
    assert 0 < len(drafter._index._places) <= 3 * MOST_NEW
    commit(seq, early[:8])
    assert propose(drafter, seq, 4).tokens.tolist() == early[8:12].tolist()
    for _ in range(2):
        commit(seq, [7])
        propose(drafter, seq, 4)
    for known in (between, late):
        commit(seq, known[:8])
        assert propose(drafter, seq, 4).tokens.tolist() == known[8:12].tolist()


def test_usual_prompts_are_entered_at_once():
    random = np.random.default_rng(1)
    once = random.integers(0, 1 << 20, MOST_NEW - 8)
    seq = Request([*once, *once[-40:-32]], vocabulary=1 << 20)
    assert propose(PromptLookup(), seq, 4).tokens.tolist() == once[-32:-28].tolist()


def commit(seq: Request, tokens: Sequence[int]) -> None:
    said = [int(token) for token in tokens]
    seq.commit(Verdict(said, [0] * len(said), ArrayLogits(np.zeros((1, 4)))))


@given(texts, st.lists(texts, max_size=5), st.integers(1, 4), st.integers(1, 4))
def test_the_growing_index_equals_a_fresh_one(text, pieces, longest, shortest):
    drafter = PromptLookup(longest, min(shortest, longest))
    seq = Request(text, 10_000)
    propose(drafter, seq, 4)
    logits = ArrayLogits(np.zeros((1, 4)))
    for piece in pieces:
        seq.commit(Verdict(piece, [0] * len(piece), logits))
        got = propose(drafter, seq, 7).tokens.tolist()
        assert got == scan(seq.tokens.tolist(), 7, longest, min(shortest, longest))


def test_a_copy_is_surer_the_longer_it_has_matched():
    first = propose(PromptLookup(), Request([*range(40), 3]), 20).estimates
    assert (np.diff(first) >= 0).all()
    assert first[0] < 0.5
    assert first[-1] > 0.9


@pytest.mark.parametrize("count", [1, 3, 8])
def test_periodic_text_reaches_the_whole_draft_and_one_more(count):
    """After the prompt "abcabc", every forward yields num_speculative_tokens + 1 tokens."""
    most = 10 * (count + 1)
    seq = Request([0, 1, 2] * 2, most)
    decoder = parse({"method": "prompt-lookup", "num_speculative_tokens": count})()
    output = play(decoder, seq, certain(lambda text: (text[-1] + 1) % 3)).output
    assert output == [i % 3 for i in range(most)]
    assert [len(step) for step in seq.commits] == [count + 1] * 10


def test_estimates_learn_from_rejections():
    drafter = PromptLookup()
    seq = Request([1, 2, 1, 2])
    first = propose(drafter, seq, 4)
    reply = Reply(ArrayLogits(np.zeros((5, 8))))
    drafter.observe(seq, first, reply, Verdict([5], [0], reply.logits))
    worse = propose(drafter, seq, 4).estimates
    drafter.observe(seq, first, reply, Verdict([1, 2, 1, 2, 1], [0, 1, 2, 3, 4], reply.logits))
    better = propose(drafter, seq, 4).estimates
    assert worse[0] < first.estimates[0]
    assert (better > worse).all()
    assert ((worse > 0) & (better < 1)).all()


def test_requests_do_not_share_an_index():
    spec = parse("prompt-lookup")
    target = certain(lambda text: 5)
    play(spec(), Request([1, 2, 3, 1, 2, 3]), target)
    fresh = Request([9, 1, 2], 2)
    play(spec(), fresh, target)
    assert len(fresh.trees[0]) == 0


def test_sizes_must_be_in_order():
    for method in ("prompt-lookup", "lookup-tree"):
        with pytest.raises(InvalidInput, match=r"^min_ngram: 4 .* at most max_ngram"):
            parse(f"{method}(min_ngram=4, max_ngram=2)")
