"""The schedules of the models' own samplers; one token a forward is the reference trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paradecode.core.decoder import Guarantee
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.policies.planned import quota
from paradecode.methods.canvas.view import Decision, Scores, View
from paradecode.methods.parts import choice

SCORES: Mapping[str, Callable[[View], Scores]] = {
    "confidence": lambda view: view.confidence,
    "margin": lambda view: view.margin,
    "entropy": lambda view: -view.entropy,
    "random": lambda view: view.uniform(0),  # An order that is fixed for the request.
}
"""Scores by which positions are ranked, best first."""

NAMES = {
    "low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin",
}  # fmt: skip
"""Names of scores in the models' own scripts -> ours."""


def scores_of(view: View, name: str) -> Scores:
    """float64 [K]: the scores of this name, which is ours or one of the models' scripts."""
    return SCORES[NAMES.get(name, name)](view)


def guarantee(settings: Mapping[str, Any]) -> Guarantee:
    """The guarantee under these settings: one token a forward, the best first, is the reference."""
    usual = settings.get("steps", 0) == 0 and settings.get("score", "confidence") in (
        "confidence", "low_confidence", "maskgit_plus",
    )  # fmt: skip
    return "exact" if usual else "lossy"


@policy(
    "static",
    paper="Large Language Diffusion Models",
    arxiv="2502.09992",
    aliases=("llada", "low-confidence", "reference"),
    names={"remasking": "score", "alg": "score"},
    guarantee="exact",
    under=guarantee,
)
@dataclass
class Static(Policy):
    """Commit the best-scored positions, as many in each forward as `steps` asks for.

    Without ``steps`` it is one a forward: the reference that other policies are measured against.

    When: as the reference; with ``steps``, for the models' own trade of forwards against quality.
    """

    score: str = choice("confidence", (*SCORES, *NAMES), "what ranks the positions")

    def decide(self, view: View) -> Decision:
        return Decision(view.best(scores_of(view, self.score), quota(view.progress)))
