"""The schedules of the models' own samplers; one token a forward is the reference trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Guarantee
from paradecode.core.noise import Purpose, key, uniform
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, Progress, View
from paradecode.methods.registry import choice


def random_order(view: View) -> NDArray[np.float64]:
    """Noise of (seed, position): a random order that is fixed for the request."""
    return uniform(key(view.seed, 0, Purpose.ORDER), view.positions)


SCORES: Mapping[str, Callable[[View], NDArray[np.float64]]] = {
    "confidence": lambda view: view.confidence,
    "margin": lambda view: view.margin,
    "entropy": lambda view: -view.entropy,
    "random": random_order,
}
"""By which positions are ranked, best first."""

NAMES = {
    "low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin",
}  # fmt: skip
"""What the models' own scripts call them."""


def share(progress: Progress) -> int:
    """The block's part of the planned steps, by its masks; at least one."""
    p = progress
    after = p.before + p.block_masks
    return max(1, p.steps * after // p.masks - p.steps * p.before // p.masks)


def quota(progress: Progress) -> int:
    """How many positions this forward commits when ``steps`` are spread evenly.

    The block gets its share of ``steps``; of m masks in T steps the first ``m % T`` steps commit
    one more than the others. Where the lengths divide one another this is LLaDA's schedule.
    """
    masks, steps = progress.block_masks, share(progress)
    return max(1, masks // steps + (progress.block_step < masks % steps))


def guarantee(settings: Mapping[str, Any]) -> Guarantee:
    """One forward a token from the best on is the reference; everything else is another text."""
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
        scores = SCORES[NAMES.get(self.score, self.score)](view)
        return Decision(view.best(scores, quota(view.progress)))
