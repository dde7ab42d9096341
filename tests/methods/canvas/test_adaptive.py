"""AdaBlock: where blocks end."""

from __future__ import annotations

import numpy as np
import pytest
from canvases import ATTENTION, PROMPT, run, toy
from views import canvas_of, view_of

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Adaptive
from paradecode.methods.specs import parse

EVERY = "'" + " ".join(str(token) for token in range(28)) + "'"
ALIGNED = (*PROMPT, 2)


def steps(sequence):
    return [step.canvas for step in sequence.trace]


def lengths(sequence) -> list[int]:
    """Positions of each block, in order."""
    windows = dict.fromkeys(step.window for step in steps(sequence))
    return [end - start for start, end in windows]


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "dkv"])
@pytest.mark.parametrize("policy", ["static(", "static(steps=5,", "threshold(threshold=0.6,"])
def test_without_delimiters_it_is_fixed(kind: str, cache: str, policy: str) -> None:
    own = 4 if kind.startswith("block") else 7
    spec = policy + f"block_length={own},cache={cache},blocks="
    fixed = run(toy(kind), spec + "fixed)", ALIGNED)
    for blocks in ("adaptive", f"adaptive(threshold=1.01,delimiters={EVERY})", "adaptive(ahead=0)"):
        made = run(toy(kind), spec + blocks + ")", ALIGNED)
        assert steps(made) == steps(fixed)
        assert made.forwards == fixed.forwards


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("ahead", [0.1, 0.25, 1.0])
def test_lengths(kind: str, ahead: float) -> None:
    settings = f"threshold=0.2,ahead={ahead},delimiters='4 9 14 19'"
    spec = f"threshold(threshold=0.5,block_length=5,blocks=adaptive({settings}))"
    made = run(toy(kind, 300), spec, ALIGNED)
    sizes = lengths(made)
    assert sum(sizes) == 24
    assert all(1 <= size <= max(5, int(ahead * 24)) for size in sizes)


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
    """A block costs one forward of all rows, and slices of its own length."""
    spec = "static(block_length=5,cache=dual,blocks=adaptive(threshold=0.1,delimiters='4 9 14 19'))"
    made = run(toy(kind, 300), spec)
    sizes, whole = lengths(made), len(PROMPT) + 24
    assert len(set(sizes)) > 1
    least = len(sizes) * whole + sum(size * (size - 1) for size in sizes)
    assert least <= made.rows <= least + (kind == "shift") * 24
    assert made.forwards == 24


@pytest.mark.parametrize(
    "part",
    [
        "threshold=-1", "threshold=nan", "ahead=1.5", "ahead=-0.1", "delimiters='a'",
        "delimiters='-3'", "delimiters=198", "delimiters='1,2'", "delimiters='99999999999'",
        f"delimiters='{'1 ' * 3000}'", "delimiter='3'",
    ],
)  # fmt: skip
def test_bad_settings(part: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"static(blocks=adaptive({part}))")
