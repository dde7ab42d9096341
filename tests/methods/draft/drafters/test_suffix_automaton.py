"""Tests of the suffix automaton against brute force: counts, edges, matches, size, reads."""

import tracemalloc
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.tree import ROOT
from paradecode.methods.draft.drafters import suffix
from paradecode.methods.draft.drafters.suffix import START, SuffixAutomaton

pieces = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=9)), max_size=8
)
"""Random pieces: the number of the text, of three, that grows, and its new tokens."""


def built(growth: list[tuple[int, list[int]]]) -> tuple[SuffixAutomaton, list[list[int]]]:
    automaton, ends, texts = SuffixAutomaton(), [START] * 3, [[], [], []]
    for text, tokens in growth:
        ends[text] = automaton.extend(ends[text], tokens)
        texts[text] += tokens
    return automaton, texts


def substrings(texts: list[list[int]], longest: int) -> Counter:
    return Counter(
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, min(start + longest, len(text)) + 1)
    )


@given(pieces, st.sampled_from([1, 2, 4, 64]))
def test_every_substring_is_counted_and_has_its_edges(growth, deepest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "DEEPEST", deepest)
        automaton, texts = built(growth)
    counts = substrings(texts, deepest)
    for words, count in counts.items():
        state = START
        for token in words:
            state = automaton.follow(state, token)
        assert automaton.counts[state] == count
        if len(words) < deepest:
            edges = {token: automaton.counts[child] for token, child in automaton.edges(state)}
            after = {token: counts[(*words, token)] for token in range(3)}
            assert edges == {token: count for token, count in after.items() if count}
    assert len(automaton.lengths) <= 1 + 2 * sum(map(len, texts))


@given(pieces, st.lists(st.integers(0, 3), max_size=8))
def test_suffixes_are_all_that_occur(growth, tail):
    automaton, texts = built(growth)
    counts = substrings(texts, 64)
    lengths = [length for _, length in automaton.suffixes(tail)]
    for state, length in automaton.suffixes(tail):
        assert automaton.counts[state] == counts[tuple(tail[len(tail) - length :])]
    known = [n for n in range(1, len(tail) + 1) if counts[tuple(tail[len(tail) - n :])]]
    assert max(lengths, default=0) == max(known, default=0)
    # Those that are left out end at the same places as the next longer one.
    kept = {counts[tuple(tail[len(tail) - n :])] for n in lengths}
    assert kept == {counts[tuple(tail[len(tail) - n :])] for n in known}


@given(pieces, st.floats(0, 0.5))
def test_continuations_are_the_most_frequent(growth, least):
    automaton, texts = built(growth)
    counts = substrings(texts, 64)
    longer = {words: count for words, count in counts.items() if words[0] == 1 and len(words) > 1}
    total = sum(count for words, count in longer.items() if len(words) == 2)
    state = automaton.follow(START, 1)
    if state < 0:
        return
    tree = automaton.continuations(state, 1000, least, chain=False)
    paths: list[tuple[int, ...]] = []
    for parent, token, share in tree:
        above = (1,) if parent == ROOT else paths[parent]
        paths.append((*above, token))
        assert share == pytest.approx(longer[paths[-1]] / (longer.get(above, 0) or total))
    assert set(paths) == {words for words, count in longer.items() if count >= least * total}
    assert [longer[path] for path in paths] == sorted((longer[p] for p in paths), reverse=True)
    chain = automaton.continuations(state, 1000, least, chain=True)
    assert [parent for parent, _, _ in chain] == list(range(-1, len(chain) - 1))
    at = ROOT
    for _, token, share in chain:
        children = [(i, t, s) for i, (p, t, s) in enumerate(tree) if p == at]
        assert share == max(s for _, _, s in children)
        at = next(i for i, t, _ in children if t == token)


class Counting(array):
    """An array that counts how often its items are read."""

    reads = 0

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


RANDOM = np.random.default_rng(0).integers(0, 300, 8000).tolist()
TEXTS = {"random": RANDOM, "one token": [7] * 8000, "a loop": [*range(100)] * 80,
         "twice": RANDOM[:4000] * 2}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_time_is_linear(text):
    """One more token costs as many reads at the end of a text as in its middle."""
    automaton = SuffixAutomaton()
    automaton.links = links = Counting("i", [-1])
    end, reads = START, [0]
    for at in range(0, 8000, 2000):
        end = automaton.extend(end, text[at : at + 2000])
        reads.append(links.reads)
    assert reads[4] - reads[3] < 1.3 * (reads[2] - reads[1]) + 1000


@pytest.mark.first(1)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_it_knows_its_size(text):
    tracemalloc.start()
    automaton = SuffixAutomaton()
    automaton.extend(START, text)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * held < automaton.nbytes < 1.5 * held
