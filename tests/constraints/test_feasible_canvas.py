"""The tokens that may be decided on a canvas equal those found by trying every filling."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.automaton import TokenAutomaton
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.feasible import Rules
from tiers import examples

VOCABULARY, MASK, EOS = 5, 5, 4
"""The size of a tiny vocabulary, its mask token and its end token; tokens 0 to 3 are text."""


@st.composite
def automata(draw):
    states = draw(st.integers(1, 4))
    steps = [
        draw(st.dictionaries(st.integers(0, 3), st.integers(0, states - 1), max_size=3))
        for _ in range(states)
    ]
    accepting = draw(st.sets(st.integers(0, states - 1), min_size=1))
    try:
        return TokenAutomaton.of(steps, accepting, VOCABULARY + 1)
    except InvalidInput:  # Accepts nothing.
        return TokenAutomaton.of([{0: 0}], [0], VOCABULARY + 1)


def valid(automaton: TokenAutomaton, text: tuple[int, ...], least: int) -> bool:
    """Return whether the automaton accepts a text that is followed only by EOS tokens."""
    end = text.index(EOS) if EOS in text else len(text)
    if end < min(least, len(text)) or any(token != EOS for token in text[end:]):
        return False
    state = 0
    for token in text[:end]:
        state = automaton.step(state, token)
    return state >= 0 and bool(automaton.accepting[state])


@examples(200)
@given(
    automata(),
    st.integers(0, 2),
    st.lists(st.sampled_from([None, 0, 1, 2, 3, EOS]), max_size=5),
    st.integers(0, 2),
    st.data(),
)
def test_a_token_is_allowed_exactly_if_a_filling_has_it(automaton, start, output, least, data):
    prompt = np.zeros(start, np.int32)
    rules = Rules(automaton, [EOS], start, len(output), least)
    masked = np.array([False] * start + [token is None for token in output], bool)
    known = [MASK if token is None else token for token in output]
    tokens = np.concatenate([prompt, np.array(known, np.int32)]).astype(np.int32)

    fillings = [
        text
        for text in product(range(VOCABULARY), repeat=len(output))
        if all(t is None or t == mine for t, mine in zip(output, text, strict=True))
        and valid(automaton, text, least)
    ]
    assert rules.fits(tokens, masked) == bool(fillings)

    positions = np.flatnonzero(masked)
    allowed = rules.allowed(tokens, masked, positions)
    wanted = np.zeros_like(allowed)
    for text in fillings:
        for row, at in enumerate(positions):
            wanted[row, text[at - start]] = True
    assert (allowed == wanted).all()

    chosen = np.array([data.draw(st.sampled_from([0, 1, 2, 3, EOS])) for _ in positions], np.int32)
    order = np.array(data.draw(st.permutations(range(len(positions)))), np.int64)
    keep = rules.together(tokens, masked, positions[order], chosen[order])
    left = fillings
    for index, kept in zip(order, keep, strict=True):
        at, token = positions[index] - start, chosen[index]
        fitting = [text for text in left if text[at] == token]
        assert kept == bool(fitting)
        left = fitting if kept else left


@examples(50)
@given(
    automata(),
    st.lists(st.lists(st.sampled_from([None, 0, 1, EOS]), min_size=4, max_size=6), min_size=2),
    st.integers(0, 2),
    st.data(),
)
def test_what_was_asked_before_changes_no_answer(automaton, outputs, least, data):
    """The answers about a canvas do not depend on earlier questions about other canvases.

    Canvases have two lengths, as when the end of the text shortens a canvas.
    """
    asked = Rules(automaton, [EOS], 0, 5, least)
    for output in outputs:
        new = Rules(automaton, [EOS], 0, 5, least)
        masked = np.array([token is None for token in output])
        tokens = np.array([MASK if token is None else token for token in output], np.int32)
        positions = np.flatnonzero(masked)
        chosen = np.array([data.draw(st.sampled_from([0, 1, EOS])) for _ in positions], np.int32)
        made = [
            (
                rules.fits(tokens, masked),
                rules.allowed(tokens, masked, positions).tolist(),
                rules.together(tokens, masked, positions, chosen).tolist(),
            )
            for rules in (asked, new)
        ]
        assert made[0] == made[1]


def test_without_a_token_that_ends_only_the_text_counts():
    """After a text that nothing may follow, any token is allowed, because nobody will see it."""
    automaton = TokenAutomaton.of([{1: 1}, {2: 2}, {}], [2], 4)
    rules = Rules(automaton, [], 0, 4)
    tokens, masked = np.zeros(4, np.int32), np.ones(4, bool)
    assert rules.allowed(tokens, masked, np.arange(4)).sum(axis=1).tolist() == [1, 1, 4, 4]


def test_positions_beyond_what_is_shown_are_free():
    automaton = TokenAutomaton.of([{1: 1}, {}], [1], 4)
    rules = Rules(automaton, [0], 0, 2)
    allowed = rules.allowed(np.zeros(4, np.int32), np.ones(4, bool), np.arange(4))
    assert allowed.sum(axis=1).tolist() == [1, 1, 4, 4]


def test_an_automaton_that_accepts_nothing_is_refused():
    with pytest.raises(InvalidInput, match="no text meets it"):
        TokenAutomaton.of([{1: 1}, {1: 0}], [], 4)
