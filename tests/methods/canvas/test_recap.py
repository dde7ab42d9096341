"""ReCAP: groups between forwards of everything."""

from __future__ import annotations

import numpy as np
import pytest
from canvases import ATTENTION, PROMPT, run, toy

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Full
from paradecode.methods.canvas.caches.chosen_rows import Recap
from paradecode.methods.canvas.canvas import Decision
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode.methods.specs import parse

FULL = ("full", "shift")
WHOLE = len(PROMPT) + 24


def steps(sequence):
    return [step.canvas for step in sequence.trace]


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("cache", ["recap(local=0)", "recap(warmup=99)", "recap(local=0,group=9)"])
@pytest.mark.parametrize("policy", ["static(", "static(steps=5,", "threshold(threshold=0.5,"])
def test_no_local_forwards_is_no_cache(kind: str, cache: str, policy: str) -> None:
    for blocks in ("full", "fixed", "sliding", "adaptive"):
        spec = f"{policy}blocks={blocks},block_length=8,cache={{}})"
        made, plain = (run(toy(kind), spec.format(name)) for name in (cache, "none"))
        assert steps(made) == steps(plain)
        assert made.rows == plain.rows


@pytest.mark.parametrize("kind", [kind for kind in ATTENTION if kind not in FULL])
def test_exact_for_models_with_blocks(kind: str) -> None:
    made = run(toy(kind), "static(cache=recap(local=3),block_length=8)")
    plain = run(toy(kind), "static(block_length=8)")
    assert made.output == plain.output
    assert made.rows < plain.rows


@pytest.mark.parametrize("kind", FULL)
def test_the_group_is_what_the_full_forward_was_surest_of(kind: str) -> None:
    groups = []

    class Watched(Recap):
        def after(self, view, decision):
            super().after(view, decision)
            if view.refresh:
                order = np.argsort(-view.confidence, kind="stable")[:4]
                groups.append(set((view.positions[order] - len(PROMPT)).tolist()))

    made = run(toy(kind), lambda: Unmask(Static(), Full(), Watched(local=3)))
    offsets = [step.offsets[0] for step in steps(made)]
    assert len(groups) == 6
    for number, group in enumerate(groups):
        assert set(offsets[4 * number : 4 * number + 4]) == group


@pytest.mark.parametrize("kind", FULL)
def test_where_nothing_changed_a_local_forward_is_the_full_one(kind: str) -> None:
    class Twice(Unmask):
        """A policy that decides nothing after the full forward, and compares the local forward
        with it."""

        def decode(self, seq):
            canvas = self.begin(seq)
            window, plan = self.plan()
            full = yield from self.look(window, plan)
            self.cache.after(full, Decision())
            canvas.steps += 1
            plan = self.cache.plan(canvas, window)
            assert plan.rows.sum() == 7
            positions = self.ask(window, plan)[1]
            local = yield from self.look(window, plan)
            assert (local.positions == positions).all()
            rows = full.rows(positions)
            assert (local.confidence == full.confidence[rows]).all()
            assert (local.proposals == full.proposals[rows]).all()
            yield from super().decode(seq)

    made = run(toy(kind), lambda: Twice(Static(), Full(), Recap(group=7)))
    assert len(made.output) == 24


@pytest.mark.parametrize("part", ["local=-1", "group=-1", "warmup=1.5", "local=nan", "r=1"])
def test_bad_settings(part: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"static(cache=recap({part}))")
