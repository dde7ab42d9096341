"""Constraints on a canvas: no token is committed after which the text cannot be completed."""

from typing import Any

import pytest
from canvases import ATTENTION, MASK, run, toy

from paradecode.core.automaton import TokenAutomaton
from paradecode.core.errors import InvalidInput

LETTERS = TokenAutomaton.of([{4: 1, 5: 1}, {4: 1, 5: 1}], [1], 29)
"""An automaton for one or more of the tokens 4 and 5: a text may end after each of them."""
METHODS = ["static(block_length=1)", "threshold(block_length=1,cache=dual)", "threshold"]


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("spec", [*METHODS, "assd"])
def test_where_no_token_ends_a_text_it_fills_the_output(kind: str, spec: str) -> None:
    made = run(toy(kind), spec, (8,), 7, LETTERS)
    assert len(made.output) == 7
    assert set(made.output) <= {4, 5}
    assert made.finish_reason == "length"


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("spec", [*METHODS, "assd"])
def test_a_token_that_ends_a_text_writes_none_of_it(kind: str, spec: str) -> None:
    """A token that ends the text is no part of it.

    The constraint allows 59 and 46, and 9 ends a text, so only 46 is possible, however likely 5 is.
    """
    pairs = TokenAutomaton.of([{5: 1, 4: 2}, {9: 3}, {6: 3}, {}], [3], 29)
    made = run(toy(kind), spec, (8,), 4, pairs, stop_token_ids=[9], logit_bias={5: 30.0})
    assert (made.output, made.finish_reason) == ([4, 6], "stop")


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("values", [{}, {"stop_token_ids": [MASK]}])
def test_nothing_ends_where_only_the_mask_token_would(spec: str, values: dict[str, Any]) -> None:
    """The mask token cannot end a text, even if it is a stop token.

    The constraint allows 56, or 4 followed by pairs of 8. With two positions only 56 is possible,
    however likely 4 is.
    """
    texts = TokenAutomaton.of([{4: 1, 5: 2}, {8: 3}, {6: 4}, {8: 1}, {}], [1, 4], 29)
    made = run(toy("full"), spec, (8,), 2, texts, logit_bias={4: 30.0}, **values)
    assert made.output == [5, 6]


def test_the_mask_token_writes_no_text() -> None:
    """The constraint never counts the mask token as a way to continue a text.

    The second token is decided first. It would be 5 if the mask token could come before it.
    """
    pairs = TokenAutomaton.of([{MASK: 1, 4: 2, 7: 2}, {5: 3}, {6: 3}, {}], [3], 29)
    made = run(toy("full"), "static", (8,), 2, pairs, logit_bias={5: 30.0, 4: 1.0, 7: 1.0})
    assert made.output[1] == 6


def test_what_cannot_be_written_is_refused() -> None:
    empty, pairs = TokenAutomaton.of([{}], [0], 29), TokenAutomaton.of([{4: 1}, {5: 0}], [0], 29)
    with pytest.raises(InvalidInput, match="only text is empty"):
        run(toy("full"), "static", (8,), 7, empty)
    with pytest.raises(InvalidInput, match=r"max_tokens: 7 .* ends there.*ignore_eos"):
        run(toy("full"), "static", (8,), 7, pairs)
    for constraint in (empty, pairs):
        assert run(toy("full"), "static", (8,), 7, constraint, ignore_eos=False).error is None
