"""Commit whatever the model is sure of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parameters import parameter


@policy(
    "threshold",
    paper="Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and "
    "Parallel Decoding",
    arxiv="2505.22618",
    aliases=("fast-dllm", "confidence-threshold"),
)
@dataclass
class Threshold(Policy):
    """Commit every position at least as probable as the threshold, and always the best one.

    What is decided in one forward is decided as if its positions did not depend on one another.
    Where each of them is nearly certain that is nearly right, and a lower threshold makes it less
    so.

    When: the default for diffusion models: one number trades forwards against quality. Find yours
    with ``paradecode bench --suite parallel``.
    """

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability; above 1: one a forward")

    def decide(self, view: View) -> Decision:
        sure = int((view.eligible & (view.confidence >= self.threshold)).sum())
        return Decision(np.sort(view.best(view.confidence, max(sure, 1))))
