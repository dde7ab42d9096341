"""Policies that commit what the model is sure of: Fast-dLLM's threshold and factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parts import choice, parameter


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
    so. With ``score=entropy`` the threshold is the most entropy of a position that is committed:
    dParallel (2509.26488) takes 0.5, with a model that `paradecode train dparallel` made.

    When: the default for diffusion models: one number trades forwards against quality. Find yours
    with ``paradecode bench --suite parallel``.
    """

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability; above 1: one a forward")
    score: str = choice("confidence", ("confidence", "entropy"), "entropy: at most so many nats")

    def decide(self, view: View) -> Decision:
        score, least = view.confidence, self.threshold
        if self.score == "entropy":
            score, least = -view.entropy, -least
        sure = int((view.eligible & (score >= least)).sum())
        return Decision(np.sort(view.best(score, max(sure, 1))))


@policy(
    "factor",
    paper="Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and "
    "Parallel Decoding",
    arxiv="2505.22618",
)
@dataclass
class Factor(Policy):
    """Commit the n surest positions while (n + 1)(1 - probability) is at most the factor.

    With a factor of 1 the argmax of each position is then the argmax of their joint distribution
    (the paper's theorem 1). The best position is always committed.

    When: as ``threshold``, where how many are committed should follow from how sure they are
    together.
    """

    factor: float = parameter(1.0, 0.0, 1e6, "how much joint doubt is allowed")

    def decide(self, view: View) -> Decision:
        order = view.best(view.confidence, len(view.positions))
        doubt = 1.0 - view.confidence[view.rows(order)]
        fits = doubt * (np.arange(len(order)) + 2) <= self.factor
        fits[0] = True
        count = len(order) if fits.all() else int(np.argmin(fits))
        return Decision(order[:count])
