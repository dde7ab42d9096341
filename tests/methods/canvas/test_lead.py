"""Blocks whose first position is decided alone: only where the model has blocks and a shift."""

from __future__ import annotations

import pytest
from canvases import run, toy


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
