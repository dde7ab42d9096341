"""SuffixDecoding's card: lengths, scores, modes; past outputs are bounded and a tenant's own."""

from __future__ import annotations

import numpy as np
from drafting import Request, certain, draft, hashed, play
from hypothesis import given
from hypothesis import strategies as st

from paradecode.methods.draft.drafters.suffix import Suffix
from paradecode.methods.draft.history import BREAK, expected
from paradecode.methods.draft.past_outputs import Past, PastOutputs

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


@given(texts)
def test_no_factor_no_draft(text):
    assert len(draft(Suffix(max_spec_factor=0.0), Request(text))) == 0


@given(texts, st.integers(1, 10))
def test_score_is_at_most_the_number_of_tokens(text, limit):
    tokens = np.array(text, np.int32)
    score, _, branches = Suffix()._best(tokens, tokens, limit)
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


def test_past_outputs_help_the_next_request():
    stores: dict[str, object] = {}
    law = certain(lambda text: 3 * len(text) % 31)
    first = play("suffix", Request([1, 2], 60, stores), law)
    again = play("suffix", Request([1, 2], 60, stores), law)
    elsewhere = play("suffix", Request([1, 2], 60), law)
    alone = play("suffix(max_cached_requests=0)", Request([1, 2], 60, stores), law)
    assert first.output == again.output == elsewhere.output == alone.output
    assert again.tokens_per_step > 2 * first.tokens_per_step
    assert elsewhere.tokens_per_step == alone.tokens_per_step == first.tokens_per_step


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40), st.integers(1, 5))
def test_past_outputs_are_bounded_and_forgotten_whole(events, most):
    past, model, keys = PastOutputs(most_tokens=30), {}, []
    for opens, size in events:
        if opens or not keys:
            while len(model) >= most:
                del model[next(iter(model))]
            keys.append(past.open(most))
            model[keys[-1]] = []
        else:
            key = keys[size % len(keys)]
            past.extend(key, [size] * size)
            if key in model:
                model[key] += [size] * size
                while sum(map(len, model.values())) > 30:
                    del model[next(iter(model))]
        assert len(past) == len(model) <= most
        assert past.tokens == sum(map(len, model.values())) <= 30
        wanted = [token for output in model.values() for token in [*output, BREAK]]
        assert past.others(0, Past()).text.tolist() == wanted


def test_a_request_does_not_see_what_others_add_meanwhile():
    stores: dict[str, object] = {}
    drafter, seq = Suffix(), Request([1, 2, 3], 40, stores)
    assert len(draft(drafter, seq)) == 0
    play("suffix", Request([9], 30, stores), hashed(4))
    assert len(drafter._past.text) == 0
