"""Tests where blocks begin and end: AdaBlock, the lead of a block, and the sliding window."""

import numpy as np
import pytest
from canvases import PROMPT, run, steps, toy
from views import canvas_of, view_of

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Adaptive, Sliding
from paradecode.methods.specs import parse


def test_a_block_ends_with_its_most_confident_delimiter() -> None:
    canvas = canvas_of(20, start=3)
    rule = Adaptive(threshold=0.5, ahead=0.5, delimiters="4 7")
    rule.start(canvas, 6)
    assert (rule.window(canvas).start, rule.window(canvas).end) == (3, 13)
    confidence = np.full(20, 0.9)
    confidence[[4, 7, 15, 18]] = 0.6, 0.7, 0.99, 0.99  # Offset k proposes token k % 11.
    view = view_of(confidence, canvas=canvas, window=(3, 13))
    window = rule.narrow(view)
    assert (window.start, window.end) == (3, 3 + 8)  # Offset 7; 15 and 18 are too far ahead.
    assert rule.window(canvas) == window
    assert rule.narrow(view_of(confidence, canvas=canvas, window=(3, 11))) == window
    canvas.commit(np.arange(3, 11), np.ones(8, np.int32))
    later = rule.window(canvas)
    assert (later.start, later.end, later.block) == (11, 21, window.block + 1)


def test_equal_confidence_goes_to_the_first() -> None:
    canvas = canvas_of(20)
    rule = Adaptive(threshold=0.5, ahead=1.0, delimiters="4")
    rule.start(canvas, 6)
    rule.window(canvas)
    assert rule.narrow(view_of(np.full(20, 0.8), canvas=canvas)).end == 5


def test_unsure_delimiters_leave_the_usual_length() -> None:
    canvas = canvas_of(20)
    rule = Adaptive(delimiters="4")
    rule.start(canvas, 6)
    rule.window(canvas)
    assert rule.narrow(view_of(np.full(20, 0.29), canvas=canvas)).end == 6


@pytest.mark.parametrize("kind", ["full", "shift"])
def test_one_forward_of_everything_a_block(kind: str) -> None:
    """A block costs one forward of all rows, and then forwards of its own length."""
    spec = "static(block_length=5,cache=dual,blocks=adaptive(threshold=0.1,delimiters='4 9 14 19'))"
    made = run(toy(kind, 300), spec)
    sizes = [end - start for start, end in dict.fromkeys(step.window for step in steps(made))]
    whole = len(PROMPT) + 24
    assert len(set(sizes)) > 1
    least = len(sizes) * whole + sum(size * (size - 1) for size in sizes)
    assert least <= made.rows <= least + (kind == "shift") * 24
    assert made.forwards == 24


@pytest.mark.parametrize("kind", ["full", "shift", "block", "causal"])
def test_other_models_have_fixed_blocks(kind: str) -> None:
    made, fixed = (
        run(toy(kind), f"threshold(threshold=0.3,block_length=4,blocks={blocks})")
        for blocks in ("lead", "fixed")
    )
    assert [s.canvas for s in made.trace] == [s.canvas for s in fixed.trace]


def test_the_first_position_of_each_block_of_the_model_comes_first_and_alone() -> None:
    made = run(
        toy("block-shift"), "threshold(threshold=0,block_length=2,blocks=lead)", range(4, 12)
    )
    steps = [step.canvas.offsets for step in made.trace]
    assert steps == [s for at in range(0, 24, 4) for s in ((at,), (at + 1,), (at + 2, at + 3))]


FULL = ("full", "shift")


def test_unsure_positions_do_not_hold_it_up_until_it_is_too_wide() -> None:
    canvas = canvas_of(30, start=4)
    rule = Sliding(masks=3, width=8)
    rule.start(canvas, 32)
    seen = []
    for at in (5, 6, 7, 8, 9, 10):
        window = rule.window(canvas)
        seen.append((window.start, window.end))
        canvas.commit(np.array([at]), np.array([1]))
    assert seen == [(4, 7), (4, 8), (4, 9), (4, 10), (4, 11), (4, 12)]
    canvas.commit(np.array([11]), np.array([1]))
    window = rule.window(canvas)
    assert (window.start, window.end) == (4, 12)  # Only position 4 is left in it.
    canvas.commit(np.array([4]), np.array([1]))
    assert rule.window(canvas).start == 12
    assert rule.window(canvas).block == window.block


def test_stays_in_the_blocks_of_the_model() -> None:
    made = run(toy("block"), "static(blocks=sliding(masks=16))", (*PROMPT, 2))
    assert all(start // 4 == (end - 1) // 4 for start, end in (s.window for s in steps(made)))
    same = run(toy("block"), "static(block_length=4)", (*PROMPT, 2))
    assert made.output == same.output


def test_the_dual_cache_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delayed"):
        parse("static(blocks=sliding,cache=dual)")
