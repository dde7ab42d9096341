"""The sampler of Dream and DiffuCoder, on its own time schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import Purpose, gumbel, key, uniform
from paradecode.decoders.diffusion.canvas import Canvas
from paradecode.decoders.diffusion.method import policy
from paradecode.decoders.diffusion.policies.base import Policy
from paradecode.decoders.diffusion.policies.static import NAMES, SCORES, share
from paradecode.decoders.diffusion.view import Decision, Positions, View
from paradecode.decoders.registry import choice, parameter


def times(steps: int, eps: float) -> NDArray[np.float32]:
    """float32 [steps + 1]: from 1 to eps, rounded as torch.linspace rounds it."""
    at = np.arange(steps + 1, dtype=np.float32)
    width = (np.float32(eps) - np.float32(1)) / np.float32(steps)
    rising = np.float32(1) + width * at
    falling = np.float32(eps) - width * (np.float32(steps) - at)
    return np.where(at < (steps + 1) // 2, rising, falling).astype(np.float32)


@policy(
    "dream",
    paper="Dream 7B: Diffusion Large Language Models",
    arxiv="2508.15487",
    aliases=("diffucoder",),
    names={"alg": "score", "alg_temp": "noise"},
    defaults={"blocks": "full"},
)
@dataclass
class Dream(Policy):
    """Commit the part of the masks that the time of each planned step asks for, best first.

    Step j of T commits int(masks * (1 - t(j + 1) / t(j))) positions and the last one all, with t
    falling from 1 to ``eps`` in even steps. Because of the int() a plan of one step per token
    commits nothing in its first step and two in its last; ``schedule=even`` has no such gaps. A
    step that commits nothing is not run: it would see the same canvas again.

    The model's own script reads the confidence after temperature and top-p, and draws new noise
    in each step; here, as in all canvas methods, it is read at temperature 1, and noise is that
    of the position. ``origin`` has no ranking: each mask is revealed with the step's probability.
    """

    score: str = choice("entropy", (*SCORES, *NAMES, "origin"), "what ranks the positions")
    noise: float = parameter(0.0, 0.0, 1e6, "temperature of the ranking; 0: the best ones")
    schedule: str = choice("dream", ("dream", "even"), "even: counts are rounded, not cut")
    eps: float = parameter(1e-3, 1e-6, 0.5, "time at the last step")

    def start(self, canvas: Canvas) -> None:
        self.block, self.step = -1, 0

    def decide(self, view: View) -> Decision:
        if view.window.block != self.block:
            self.block, self.step = view.window.block, 0
        steps = share(view.progress)
        chosen = view.positions[:0]
        while not len(chosen):  # The last step commits all.
            chosen = self._choose(view, min(self.step, steps - 1), steps)
            self.step += 1
        return Decision(chosen)

    def _choose(self, view: View, step: int, steps: int) -> Positions:
        start, end = view.window.span or (view.window.start, view.window.end)
        masks = int(view.canvas.masked[start:end].sum())
        if step == steps - 1:
            return view.positions[view.eligible]
        noise = key(view.seed, step, Purpose.ORDER)
        if self.schedule == "even":
            left = view.progress.block_masks * (steps - step - 1) // steps
            part, count = np.float32(1 / (steps - step)), masks - left
        else:
            time = times(steps, self.eps)
            part = np.float32(1) - time[step + 1] / time[step]
            count = int(np.float32(masks) * part)
        if self.score == "origin":
            return view.positions[view.eligible & (uniform(noise, view.positions) < part)]
        scores = SCORES[NAMES.get(self.score, self.score)](view)
        if self.noise > 0.0:
            scores = scores / self.noise + gumbel(noise, view.positions)
        return view.best(scores, count)
