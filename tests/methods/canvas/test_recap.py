"""ReCAP: groups between forwards of everything."""

from __future__ import annotations

import numpy as np
import pytest
from canvases import PROMPT, run, steps, toy

from paradecode.methods.canvas.block_rules import Full
from paradecode.methods.canvas.caches.chosen_rows import Recap
from paradecode.methods.canvas.canvas import Decision
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static

FULL = ("full", "shift")


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
