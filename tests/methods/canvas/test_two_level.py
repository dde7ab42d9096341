"""Fast-dLLM v2's caches work on sub-blocks inside the blocks of the model."""

import numpy as np
import pytest
from canvases import PROMPT, run, steps

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.blockwise import TwoLevelCache
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode.testing.toy import ToyBackend, toy_config

ALIGNED = (*PROMPT, 2)
SHIFTS = pytest.mark.parametrize("shift", [False, True])
POLICIES = ("static(", "static(steps=9,", "threshold(threshold=0.5,", "prophet(base=static,")


def model(shift: bool, block: int = 8) -> ToyBackend:
    return ToyBackend(toy_config(attention="block", block_length=block, shift=shift), surprise=700)


@SHIFTS
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [PROMPT, ALIGNED])
def test_a_sub_block_as_large_as_the_block_is_the_prefix_cache(shift, policy, prompt) -> None:
    for blocks in ("block_length=8", "block_length=16", "blocks=full", "blocks=sliding"):
        spec = f"{policy}{blocks},cache={{}})"
        made, prefix, plain = (
            run(model(shift), spec.format(name), prompt) for name in ("two_level", "prefix", "none")
        )
        assert steps(made) == steps(prefix) == steps(plain)
        assert made.rows == prefix.rows <= plain.rows


@SHIFTS
def test_one_forward_a_sub_block_is_exact(shift: bool) -> None:
    spec = "threshold(threshold=0,block_length=2,cache={})"
    made, plain = (run(model(shift), spec.format(name), ALIGNED) for name in ("two_level", "none"))
    assert steps(made) == steps(plain)
    assert made.forwards == 12


@SHIFTS
@pytest.mark.parametrize("policy", POLICIES)
def test_finished_blocks_are_exact(shift: bool, policy: str) -> None:
    """Each block begins from final tokens, as without a cache, though rows inside may be stale."""
    made = run(model(shift), f"{policy}block_length=4,cache=two_level)", ALIGNED)
    assert len(made.output) == 24
    for block in range(3):
        done = (*ALIGNED, *made.output[: 8 * block])
        first = next(s for s in steps(made) if s.window[0] == 8 * block)
        fresh = run(model(shift), f"{policy}block_length=4)", done)
        assert first.tokens == steps(fresh)[0].tokens
        if "prophet" not in policy and "steps" not in policy:
            assert first.confidences == steps(fresh)[0].confidences


def test_rows() -> None:
    """The cache computes the block until the sub-block's first position is decided.

    After that it computes the sub-block.
    """
    seen = []

    class Watched(TwoLevelCache):
        def plan(self, canvas, window):
            made = super().plan(canvas, window)
            seen.append((bool(canvas.masked[window.start]), window, int(made.rows.sum())))
            assert canvas.cached[made.see].all()
            return made

    def build():
        return Unmask(Static(), FixedBlocks(), Watched(), block_length=4)

    made = run(model(False, 16), build, (*ALIGNED, *ALIGNED), max_tokens=32)
    before = None
    for masked, window, rows in seen:
        fresh, before = before != window, window
        if fresh or masked:
            assert rows >= 16
        else:
            assert rows == 4
    assert made.rows == sum(rows for _, _, rows in seen)
    plain = run(model(False, 16), "static(block_length=4)", (*ALIGNED, *ALIGNED), max_tokens=32)
    prefix = run(
        model(False, 16), "static(block_length=4,cache=prefix)", (*ALIGNED, *ALIGNED), max_tokens=32
    )
    assert made.rows < prefix.rows < plain.rows
    assert made.forwards == prefix.forwards == plain.forwards == 32


@SHIFTS
def test_shift_costs_at_most_one_more_forward_of_each_block(shift: bool) -> None:
    made = run(model(shift, 16), "static(block_length=4,cache=two_level)", max_tokens=41)
    prefix = run(model(shift, 16), "static(block_length=4,cache=prefix)", max_tokens=41)
    assert made.rows < prefix.rows


@SHIFTS
@pytest.mark.parametrize("blocks", ["fixed", "full", "lead"])
def test_a_finished_block_may_be_masked_again(shift: bool, blocks: str) -> None:
    revoked = 0
    for seed in range(25):
        spec = f"remask(blocks={blocks},cache=two_level,block_length=8)"
        made = run(model(shift, 4), spec, max_tokens=13, seed=seed)
        assert made.error is None
        revoked += sum(bool(step.revoked) for step in steps(made))
    assert revoked


def test_full_attention_is_refused() -> None:
    with pytest.raises(InvalidInput, match="blocks of its own"):
        run(ToyBackend(toy_config(attention="full")), "static(cache=two_level)")


def test_a_stale_block_can_change_the_text() -> None:
    """The stale cache changes some text; without this, other tests of this file prove nothing."""
    outputs = [
        run(
            model(False, 16), f"static(block_length=4,cache={name})", (token,), max_tokens=31
        ).output
        for token in np.arange(4, 12).tolist()
        for name in ("two_level", "none")
    ]
    assert any(a != b for a, b in zip(outputs[::2], outputs[1::2], strict=True))
