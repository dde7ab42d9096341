"""The sliding window, and the cache that goes with it."""

from __future__ import annotations

import numpy as np
import pytest
from canvases import PROMPT, run, toy
from views import canvas_of

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Sliding
from paradecode.methods.canvas.caches.blockwise import DelayedCache
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode.methods.specs import parse

FULL = ("full", "shift")


def steps(sequence):
    return [step.canvas for step in sequence.trace]


def test_one_mask_is_left_to_right() -> None:
    made = run(toy("full"), "static(blocks=sliding(masks=1))")
    assert [s.offsets for s in steps(made)] == [(at,) for at in range(24)]


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


@pytest.mark.parametrize("kind", FULL)
def test_refresh_at_every_token_is_no_cache(kind: str) -> None:
    for blocks in ("sliding(masks=6)", "fixed", "full"):
        for policy in ("static(", "threshold(threshold=0.5,"):
            spec = f"{policy}blocks={blocks},cache={{}},block_length=8)"
            cached = run(toy(kind), spec.format("delayed(refresh=1)"))
            assert steps(cached) == steps(run(toy(kind), spec.format("none")))


def test_rows_of_the_delayed_cache() -> None:
    """From left to right: the last window and this one are three positions."""
    whole, length = len(PROMPT) + 24, 24
    made = run(toy("full"), "static(blocks=sliding(masks=2),cache=delayed(delay=0,refresh=8))")
    plain = run(toy("full"), "static(blocks=sliding(masks=2))")
    assert made.forwards == plain.forwards == length
    assert plain.rows == length * whole
    assert made.rows <= 3 * whole + 21 * (3 + 16) < plain.rows
    wide = run(toy("full"), "static(blocks=sliding(masks=2),cache=delayed(delay=400,refresh=8))")
    assert wide.rows == 3 * whole + 21 * 24  # All but the prompt, which the paper's code keeps.


@pytest.mark.parametrize("kind", FULL)
def test_no_token_stays_cached_as_a_mask(kind: str) -> None:
    seen = []

    class Watched(DelayedCache):
        def plan(self, canvas, window):
            made = super().plan(canvas, window)
            stale = (canvas.stored != canvas.tokens) & ~made.rows
            seen.append(int(stale.sum()))
            return made

    run(toy(kind), lambda: Unmask(Static(), Sliding(masks=4), Watched(refresh=100)))
    assert len(seen) == 24
    assert not any(seen)


def test_exact_for_models_with_blocks() -> None:
    for kind in ("block", "block-shift", "causal"):
        spec = "static(blocks=sliding(masks=3),cache={})"
        cached, plain = (run(toy(kind), spec.format(name)) for name in ("delayed", "none"))
        assert cached.output == plain.output
        assert cached.rows < plain.rows


def test_the_dual_cache_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delayed"):
        parse("static(blocks=sliding,cache=dual)")


@pytest.mark.parametrize(
    "part",
    [
        "blocks=sliding(masks=0)", "blocks=sliding(width=0)", "blocks=sliding(masks=2.5)",
        "blocks=sliding(masks=10000000000)", "blocks=sliding(mask=3)", "blocks=sliding(width=nan)",
        "cache=delayed(refresh=0)", "cache=delayed(delay=-1)", "cache=delayed(delay='x')",
    ],
)  # fmt: skip
def test_bad_settings(part: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"static({part})")
