"""A policy that trusts the neighbours of sure positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parts import parameter


@policy(
    "local-leap",
    paper="Accelerating Diffusion LLM Inference via Local Determinism Propagation",
    url="https://github.com/friedrichor/LocalLeap",
    aliases=("localleap",),
    names={
        "anchor_threshold": "threshold", "relaxed_threshold": "relaxed",
        "neighbor_radius": "radius",
    },
)  # fmt: skip
@dataclass
class LocalLeap(Policy):
    """Commit as `threshold` does, with a lower threshold near positions that pass it.

    What is committed at the lower threshold is no anchor for others in the same step.

    When: ``threshold`` stalls beside text that is sure already, as in lists, code and formulas.
    """

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability of an anchor")
    relaxed: float = parameter(0.75, 0.0, 1.01, "least probability near an anchor")
    radius: int = parameter(4, 0, 1 << 20, "how far from an anchor near is")

    def decide(self, view: View) -> Decision:
        anchors = view.eligible & (view.confidence >= self.threshold)
        if not anchors.any():
            return Decision(view.best(view.confidence, 1))
        places = view.positions[anchors]
        after = np.searchsorted(places, view.positions)
        left = view.positions - places[np.maximum(after - 1, 0)]
        right = places[np.minimum(after, len(places) - 1)] - view.positions
        near = np.minimum(np.abs(left), np.abs(right)) <= self.radius
        sure = near & (view.confidence >= self.relaxed)
        return Decision(view.positions[view.eligible & (anchors | sure)])
