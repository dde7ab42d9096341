"""ReCAP computes its groups between forwards of every row."""

import numpy as np
import pytest
from canvases import PROMPT, run, steps, toy

from paradecode.methods.canvas.block_rules import Full
from paradecode.methods.canvas.caches.chosen_rows import Recap
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
