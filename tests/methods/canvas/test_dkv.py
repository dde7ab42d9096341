"""The decode and greedy forms of dKV-Cache."""

import numpy as np
import pytest
from canvases import PROMPT, run, steps, toy
from views import canvas_of

from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.chosen_rows import DelayedKV, GreedyDelayedKV
from paradecode.methods.canvas.canvas import Window
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static

FULL = ("full", "shift")
WHOLE = len(PROMPT) + 24


def test_rows_of_decode() -> None:
    """Decode computes N rows in the first two steps and at every refresh.

    Otherwise it computes all rows except those that were decided at least two steps before.
    """
    seen = []

    class Watched(DelayedKV):
        def plan(self, canvas, window):
            made = super().plan(canvas, window)
            seen.append(int(made.rows.sum()))
            assert not (made.store & canvas.masked).any()
            return made

    made = run(toy("full"), lambda: Unmask(Static(), FixedBlocks(), Watched(refresh=8)))
    full = {0, 1, 8, 16}
    known = [len(PROMPT) + step - 1 for step in range(24)]
    assert seen == [WHOLE if step in full else WHOLE - known[step] for step in range(24)]
    assert made.rows == sum(seen)


@pytest.mark.parametrize("kind", FULL)
def test_what_is_cached_was_computed_from_the_token(kind: str) -> None:
    class Watched(DelayedKV):
        def plan(self, canvas, window):
            made = super().plan(canvas, window)
            assert not (made.see & canvas.masked).any()
            assert (canvas.stored[made.see] == canvas.tokens[made.see]).all()
            return made

    for policy in (Static(), Static("random")):
        run(
            toy(kind),
            lambda policy=policy: Unmask(policy, FixedBlocks(), Watched(), block_length=8),
        )


@pytest.mark.parametrize("kind", FULL)
def test_rows_of_greedy(kind: str) -> None:
    """Greedy computes at most the last token, the next one and its neighbours.

    In models with a shift there is one row more.
    """
    for neighbours in (0, 3, 6):
        cache = f"dkv_greedy(refresh=4,neighbours={neighbours},order=random)"
        made = run(toy(kind), f"static(score=random,cache={cache})")
        full, cheap = 6, 18
        most = (2 + neighbours) * (1 + (kind == "shift"))
        assert full * WHOLE + cheap <= made.rows <= full * WHOLE + cheap * most
        assert made.forwards == 24


@pytest.mark.parametrize("kind", FULL)
def test_a_random_order_is_kept(kind: str) -> None:
    """Greedy computes the rows of the positions that a random order has next.

    The order is therefore the same as without the cache.
    """
    cached = run(toy(kind), "static(score=random,cache=dkv_greedy(order=random,refresh=7))", seed=4)
    plain = run(toy(kind), "static(score=random)", seed=4)
    assert [s.offsets for s in steps(cached)] == [s.offsets for s in steps(plain)]


def test_neighbours_alternate_left_and_right() -> None:
    canvas = canvas_of(12)
    canvas.commit(np.array([4, 6]), np.array([1, 1]))
    cache = GreedyDelayedKV(neighbours=3)
    cache.start(canvas)
    cache._scores[5] = 1.0
    assert np.flatnonzero(cache._next(canvas, Window(0, 12))).tolist() == [2, 3, 5, 7]
    cache._scores[0] = 2.0
    assert np.flatnonzero(cache._next(canvas, Window(0, 12))).tolist() == [0, 1, 2, 3]
