"""The bound of copying: what may be copied is what is found by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paradecode_lab.measure.replay.recording import Request
from tools.figures.copy_bound import longest_copies


def request(prompt: list[int], output: list[int]) -> Request:
    empty = np.zeros((0, 1))
    ids = (np.array(part, np.int32) for part in (prompt, output, []))
    return Request("r", "g", *ids, empty.astype(np.int32), empty.astype(np.float32), empty[:, 0], 9)


def by_hand(text: list[int], at: int, least: int) -> int:
    longest = 0
    for place in range(least, at):
        if text[place - least : place] == text[at - least : at]:
            size = 0
            while at + size < len(text) and text[place + size] == text[at + size]:
                size += 1
            longest = max(longest, size)
    return longest


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_the_longest_copies_are_those_found_by_hand(least: int, seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 3, 25).tolist()
    text += text[3:18]
    found = longest_copies(request(text[:7], text[7:]), least, 64)
    assert found[7:40].tolist() == [by_hand(text, at, least) for at in range(7, 40)]
    assert found[7:40].max() > 9
    assert longest_copies(request(text[:7], text[7:]), least, 2).max() == 2
