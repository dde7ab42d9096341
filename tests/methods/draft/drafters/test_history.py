"""Tests of occurrences and counts of continuations against brute force."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.tree import ROOT
from paradecode.methods.draft.history import BREAK, continuations, evidence, following, occurrences
from paradecode.methods.draft.model_free import DEFAULT, priors_of

texts = st.lists(st.integers(0, 2), max_size=40)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@given(texts, texts, st.integers(1, 6), st.booleans())
def test_occurrences_equal_a_scan(text, tail, longest, itself):
    tail = text if itself else tail
    starts, lengths = occurrences(array(text), array(tail), longest, most=100)
    wanted = {}
    for start in range(1, len(text)):
        size = 0
        while (
            size < min(longest, len(tail), start)
            and text[start - 1 - size] == tail[len(tail) - 1 - size]
        ):
            size += 1
        if size:
            wanted[start] = size
    assert dict(zip(starts.tolist(), lengths.tolist())) == wanted


@given(texts, st.integers(1, 8))
def test_of_many_occurrences_the_latest_are_kept(text, most):
    starts, lengths = occurrences(array(text), array(text), 6, most)
    every, longest = occurrences(array(text), array(text), 6, 1000)
    assert len(starts) <= most
    assert set(zip(starts.tolist(), lengths)) <= set(zip(every.tolist(), longest))
    if len(every) <= most:
        assert starts.tolist() == every.tolist()


@given(texts, st.integers(1, 5))
def test_counts_are_those_of_substrings(text, depth):
    """Every node's share is count(path) / count(parent path), over all starts."""
    starts = np.arange(len(text))
    rows = following(array(text), starts, depth)
    branches = continuations(rows, limit=10_000)
    substrings = Counter(
        tuple(text[i : i + size])
        for i in starts.tolist()
        for size in range(1, depth + 1)
        if i + size <= len(text)
    )
    paths: list[tuple[int, ...]] = []
    for parent, token, share in branches:
        above = () if parent == ROOT else paths[parent]
        paths.append((*above, token))
        count = substrings[above] if above else len(text)
        assert np.isclose(share, substrings[paths[-1]] / count)
    assert set(paths) == set(substrings)
    counts = [substrings[path] for path in paths]
    assert counts == sorted(counts, reverse=True)


def test_continuations_stop_at_breaks():
    text = array([1, 2, BREAK, 1, 3, 4])
    rows = following(text, np.array([0, 3]), 6)
    assert rows[1].tolist() == [1, 3, 4, BREAK, BREAK, BREAK]
    assert continuations(rows, 10) == [(-1, 1, 1.0), (0, 2, 0.5), (0, 3, 0.5), (2, 4, 1.0)]


def test_every_evidence_has_a_prior():
    kinds = {evidence(matched, share) for matched in range(1, 40) for share in (0.2, 0.6, 1.0)}
    assert kinds == set(range(len(priors_of(DEFAULT)["copying"])))
    assert evidence(16, 1.0) == max(kinds)
