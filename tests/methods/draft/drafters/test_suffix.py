"""Tests of SuffixDecoding: lengths, scores, modes, and a tenant's bounded past outputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, draft
from paradecode.core.decoder import Verdict
from paradecode.methods.draft.drafters.suffix import START, PastOutputs, Suffix, SuffixAutomaton
from paradecode.methods.draft.history import expected

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(texts, st.floats(0, 4), st.floats(0, 4), st.integers(1, 16))
def test_length_follows_the_match(text, factor, offset, limit):
    drafter = Suffix(max_spec_factor=factor, max_spec_offset=offset)
    tree = draft(drafter, Request(text), limit)
    longest = max(
        (
            size
            for size in range(1, min(24, len(text)))
            for end in range(size, len(text))
            if text[end - size : end] == text[len(text) - size :]
        ),
        default=0,
    )
    assert len(tree) <= min(limit, int(longest * factor + offset + 1e-6))


@given(texts, st.integers(1, 10))
def test_score_is_at_most_the_number_of_tokens(text, limit):
    texts = SuffixAutomaton()
    texts.extend(START, text)
    score, _, branches = Suffix()._best(texts, text[-24:], limit)
    assert score <= len(branches) + 1e-9
    assert np.isclose(score, expected(branches))


@given(texts, st.integers(1, 10))
def test_path_mode_is_a_chain(text, limit):
    assert draft(Suffix(mode="path"), Request(text), limit).is_chain


def test_frequent_continuations_win():
    #       1 2 -> 3 twice, 4 once
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]
    path = draft(Suffix(mode="path"), Request(text), 1)
    assert path.tokens.tolist() == [3]
    tree = draft(Suffix(max_spec_factor=2.0), Request(text), 4)
    assert {3, 4} <= set(tree.tokens[tree.parents == -1].tolist())


def test_long_repetitions_are_drafted_further():
    text = [*range(20), 30, *range(12)]
    assert draft(Suffix(), Request(text), 30).tokens.tolist() == [*range(12, 20), 30, 0, 1, 2]
    assert len(draft(Suffix(), Request([*range(20), 30, 31, 0, 1]), 30)) == 2


def test_a_long_match_is_found_however_often_its_end_came_since():
    """A match of nine tokens is found although its last two tokens occur 200 times later on."""
    long = [*range(40, 49), 50, 51, 52]
    text = [*long, *[47, 48, 60] * 200, *long[:9]]
    assert draft(Suffix(), Request(text, vocabulary=64), 3).tokens.tolist() == [50, 51, 52]


def test_long_prompts_are_entered_piece_by_piece(monkeypatch):
    monkeypatch.setattr("paradecode.methods.draft.drafters.suffix.MOST_NEW", 4)
    seq, drafter = Request([*range(8), 0, 1, 2]), Suffix()
    assert draft(drafter, seq, 2).tokens.tolist() == [3]  # Three tokens match: 3 is the last known.
    assert draft(drafter, seq, 2).tokens.tolist() == [3, 4]
    assert draft(drafter, seq, 2).tokens.tolist() == [3, 4]


def written(outputs: PastOutputs, tokens: list[int]) -> bool:
    """Return whether a text is known as a whole."""
    return any(length == len(tokens) for _, length in outputs.texts.suffixes(tokens))


def test_outputs_are_seen_by_others_while_they_are_written():
    stores: dict[str, object] = {}
    one, other = Suffix(), Suffix()
    first, second = Request([1], 40, stores), Request([2, 7, 8], 40, stores)
    assert len(draft(other, second)) == 0
    draft(one, first)
    one.learn(first, None, None, Verdict([7, 8, 9], [0, 1, 2], None))
    assert draft(other, second).tokens.tolist() == [9]


@pytest.mark.parametrize("distinct", [True, False])
def test_outputs_are_bounded_by_bytes_and_the_oldest_go_first(distinct):
    most, outputs, random = 200_000, PastOutputs(200_000), np.random.default_rng(0)
    repeated = random.integers(0, 1000, 100).tolist()
    largest = 0
    for number in range(400):
        text = random.integers(0, 1000, 100).tolist() if distinct else repeated
        key = outputs.open()
        for at in range(0, 100, 4):
            outputs.extend(key, text[at : at + 4], most_outputs=4096)
            largest = max(largest, outputs.nbytes)
        assert written(outputs, text[-24:])
        if number == 0:
            first = text[-24:]
    assert largest <= most
    assert written(outputs, first) is not distinct
    assert len(outputs) < 200 or not distinct  # Equal texts take hardly any room.


def test_so_many_outputs_are_kept():
    outputs = PastOutputs()
    for number in range(100):
        outputs.extend(outputs.open(), [number], most_outputs=8)
        assert len(outputs) <= 8
        known = [token for token in range(100) if written(outputs, [token])]
        assert known == list(range(known[0], number + 1))  # The latest, without a gap.
        assert len(known) >= min(4, number + 1)
