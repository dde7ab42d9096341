"""The canvas keeps its flags and blocks right, and refuses changes that make no sense."""

import numpy as np
import pytest

from paradecode.core.errors import DecoderError
from paradecode.methods.canvas.canvas import NOTHING, Canvas

MASK = 9


def canvas(block: int = 0, prompt: tuple[int, ...] = (1, MASK, 2), length: int = 6) -> Canvas:
    return Canvas(np.array(prompt, np.int32), length, MASK, block)


def test_a_mask_token_in_the_prompt_is_a_token() -> None:
    c = canvas()
    assert (c.start, c.end, c.edge) == (3, 9, 3)
    assert c.masked.tolist() == [False] * 3 + [True] * 6
    assert not c.final.any()
    c.stored[:4] = c.tokens[:4]
    assert c.final.tolist() == [True] * 3 + [False] * 6
    # A cached mask is not what will be there.
    assert c.cached[:5].tolist() == [True] * 4 + [False]


def test_stale_rows_are_not_cached() -> None:
    c = canvas()
    c.stored[:] = c.tokens
    c.commit(np.array([4]), np.array([7]))
    assert not c.masked[4]
    assert not c.final[4]
    assert c.stored[4] == MASK
    c.revoke(np.array([4]))
    assert c.masked[4]
    assert c.tokens[4] == MASK


def test_edge_and_truncation() -> None:
    c = canvas()
    c.commit(np.array([4, 3]), np.array([5, 6]))
    assert c.edge == 5
    assert c.tokens[3:5].tolist() == [6, 5]
    c.truncate(5)
    assert (c.edge, c.end) == (5, 5)
    assert c.stored.tolist() == [NOTHING] * 5


@pytest.mark.parametrize(
    ("block", "end", "reach"), [(0, 4, 9), (1, 4, 4), (4, 4, 4), (4, 5, 8), (4, 9, 9)]
)
def test_reach(block: int, end: int, reach: int) -> None:
    assert canvas(block).reach(end) == reach


@pytest.mark.parametrize(("block", "origin"), [(0, 3), (1, 3), (2, 2), (4, 0)])
def test_blocks_of_the_model_begin_at_position_0(block: int, origin: int) -> None:
    assert canvas(block).origin == origin


def test_what_is_refused() -> None:
    c = canvas()
    c.commit(np.array([5]), np.array([4]))
    for positions, tokens in (([0], [4]), ([5], [4]), ([6, 6], [4, 4]), ([6], [MASK])):
        with pytest.raises(DecoderError):
            c.commit(np.array(positions), np.array(tokens))
    for revoked in ([2], [6], [5, 6]):
        with pytest.raises(DecoderError):
            c.revoke(np.array(revoked))
    for end in (3, 10, 0):
        with pytest.raises(DecoderError):
            c.truncate(end)
