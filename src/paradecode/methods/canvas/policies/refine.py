"""A policy that corrects decided tokens while the others are filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parts import parameter


@policy(
    "refine",
    paper="From Denoising to Refining: A Corrective Framework for Vision-Language Diffusion Model",
    arxiv="2510.19871",
    aliases=("rediff",),
    names={"revise_start": "last", "revise_topk": "share"},
)
@dataclass
class Refine(Wrapper):
    """Write the model's present choice over tokens of the block that were decided before.

    Of those decided before this forward whose best token is now another one, the ``share`` that
    the model is surest of (of all decided ones) is replaced, if the new token has probability
    ``least``. The paper replaces all of them: ``least=0``. Nothing is replaced after the last
    commit of a block. Needs a model that was trained to correct what it sees (`paradecode train
    refine`): plain masked diffusion leaves the predictions at decided positions untrained, and the
    text falls apart; ``least=1.01`` turns the corrections off.

    When: the model was trained to correct what it sees, and early mistakes are what costs quality.
    Never with a model as it is.
    """

    observes = "window"
    revises = True

    least: float = parameter(0.7, 0.0, 1.01, "least probability of a correction; above 1: none")
    last: float = parameter(1.0, 0.0, 1.0, "last part of the planned steps in which it corrects")
    share: float = parameter(1.0, 0.0, 1.0, "part of the decided tokens that may be replaced")

    def start(self, canvas: Canvas) -> None:
        super().start(canvas)
        self.placed = ~canvas.masked

    def decide(self, view: View) -> Decision:
        first = self.inner.decide(view)
        steps = view.progress.steps
        if view.progress.step < steps - ceil(steps * self.last):
            return first
        ours = ~view.canvas.masked[view.positions] & ~self.placed[view.positions]
        decided = np.flatnonzero(view.inside & ours)
        decided = decided[~np.isin(view.positions[decided], first.revoke)]
        order = np.argsort(-view.confidence[decided], kind="stable")
        chosen = decided[order[: ceil(len(decided) * self.share)]]
        now, then = view.proposals[chosen], view.canvas.tokens[view.positions[chosen]]
        chosen = np.sort(chosen[(now != then) & (view.confidence[chosen] >= self.least)])
        if not len(chosen):
            return first
        first = view.or_best(first)
        revoke = np.concatenate([first.revoke, view.positions[chosen]])
        return replace(view.and_also(first, chosen), revoke=revoke)
