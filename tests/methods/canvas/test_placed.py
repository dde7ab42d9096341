"""Tokens that are placed beforehand, in models whose last block is longer than the output."""

from __future__ import annotations

import pytest
from canvases import run, toy

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse

KINDS = ["full", "block", "block-shift"]
PROMPT = (8, 5, 6, 7, 9)
"""With 9 tokens of output the last block of 4 has two more positions, which are never shown."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ["dimple(prior", "assd(placed", "prophet(anchor"])
def test_a_negative_offset_counts_from_the_end_of_the_output(kind: str, setting: str) -> None:
    for offset, first in ((-2, 7), (-4, 5), (-9, 0)):
        made = run(toy(kind), f"{setting}='{offset}:11 12')", PROMPT, 9)
        assert len(made.output) == 9
        assert made.output[first : first + 2] == [11, 12]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ["dimple(prior", "assd(placed", "prophet(anchor"])
def test_what_is_not_shown_is_no_place(kind: str, setting: str) -> None:
    for placed in ("8:11 12", "9:11", "-10:11", "-1:11 12"):
        with pytest.raises(InvalidInput, match="the output has 9 positions"):
            run(toy(kind), f"{setting}='{placed}')", PROMPT, 9)
    with pytest.raises(InvalidInput, match="leave at least one position"):
        run(toy(kind), f"{setting}='0:{' 11' * 9}')", PROMPT, 9)


def test_the_answer_of_prophet_is_a_part_of_the_output() -> None:
    for start, answer in ((7, [12, 13]), (8, [13]), (9, [13]), (100, [13])):
        decoder = parse(f"prophet(answer_start={start})")()
        run(toy("block"), lambda decoder=decoder: decoder, PROMPT, 9)
        assert decoder.policy.answer.tolist() in (answer, [])
