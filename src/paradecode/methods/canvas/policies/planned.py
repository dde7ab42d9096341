"""What policies share that rank positions, or plan their steps: scores, counts, times and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from paradecode.methods.canvas.canvas import Canvas, Progress, Scores, View
from paradecode.methods.canvas.policies.base import Policy

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


def share(progress: Progress) -> int:
    """Number of the planned steps that the block gets, in proportion to its masks; at least one."""
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


def times(steps: int, eps: float) -> NDArray[np.float32]:
    """float32 [steps + 1]: from 1 to eps, rounded as torch.linspace rounds it."""
    at = np.arange(steps + 1, dtype=np.float32)
    width = (np.float32(eps) - np.float32(1)) / np.float32(steps)
    rising = np.float32(1) + width * at
    falling = np.float32(eps) - width * (np.float32(steps) - at)
    return np.where(at < (steps + 1) // 2, rising, falling).astype(np.float32)


class Planned(Policy):
    """A policy that counts the planned steps of each block in ``step``, which may run ahead of the
    forwards."""

    def start(self, canvas: Canvas) -> None:
        self.block, self.step = -1, 0

    def begins(self, view: View) -> bool:
        """Whether this is the first forward of a block; ``step`` is 0 then."""
        if view.window.block == self.block:
            return False
        self.block, self.step = view.window.block, 0
        return True


def masks_of(view: View) -> int:
    """Number of masks that are left where the planned steps apply."""
    return int(view.canvas.masked[view.window.shared].sum())


def noisy(view: View, scores: Scores, noise: float, step: int) -> Scores:
    """The scores divided by the temperature ``noise``, plus Gumbel noise of the step; 0 changes
    nothing."""
    return scores if noise == 0.0 else scores / noise + view.gumbel(step)
