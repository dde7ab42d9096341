"""Confident decoding with tokens placed beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.placed import place, read_placed
from paradecode.methods.canvas.policies.planned import Planned, masks_of, noisy, share, times
from paradecode.methods.canvas.policies.static import NAMES, SCORES, scores_of
from paradecode.methods.canvas.view import Decision, Positions, View
from paradecode.methods.parts import choice, parameter, text

OTHERS = ("origin", "origin_ratio", "autoregressive")
"""Values of ``score`` for choosing where no position is sure; the probability says what is sure."""


@policy(
    "dimple",
    paper="Dimple: Discrete Diffusion Multimodal Large Language Model with Parallel Decoding",
    arxiv="2505.16990",
    names={"alg": "score", "gamma": "threshold", "alg_p_threshold": "threshold",
           "alg_temp": "noise", "structure_prior": "prior"},
    defaults={"blocks": "full"},
)  # fmt: skip
@dataclass
class Dimple(Planned):
    """Commit what scores above the threshold; if nothing does, what the time schedule asks for.

    The schedule is Dream's, moved on to where as much is still masked as really is, and to a step
    that commits at least one. It then takes the best by ``score``; ``origin`` takes a random
    subset, ``origin_ratio`` each with the step's probability, ``autoregressive`` the leftmost one.
    The threshold is compared with the score, which is never above 0 for ``entropy``.

    ``prior`` places tokens (keys of a JSON record, "Step 1:", an end of text that fixes the
    length) that are never scored, and that the model fills in around.

    When: parts of the answer are known beforehand, such as the keys of a record; or a threshold
    shall never be slower than a plan.
    """

    threshold: float = parameter(0.95, -100.0, 1.0, "a score above it is sure; 1: schedule only")
    score: str = choice("confidence", (*SCORES, *NAMES, *OTHERS), "what ranks the positions")
    noise: float = parameter(0.0, 0.0, 1e6, "temperature of the ranking; 0: the best ones")
    eps: float = parameter(1e-3, 1e-6, 0.5, "time at the last step")
    prior: str = text(read_placed, "tokens placed beforehand: '0:523 88, 40:9'")

    def start(self, canvas: Canvas) -> None:
        super().start(canvas)
        place(canvas, self.prior, "dimple.prior")

    def decide(self, view: View) -> Decision:
        self.begins(view)
        steps, step = share(view.progress), self.step
        self.step += 1
        if step >= steps - 1:
            return Decision(view.positions[view.eligible])
        unranked = self.score in OTHERS
        scores = view.confidence if unranked else scores_of(view, self.score)
        sure = view.eligible & (scores > self.threshold)
        if sure.any():
            return Decision(view.positions[sure])
        if unranked:
            return Decision(self._otherwise(view, step, steps))
        scores = noisy(view, scores, self.noise, step)
        return Decision(view.best(scores, self._planned(view, step, steps)[0]))

    def _planned(self, view: View, step: int, steps: int) -> tuple[int, float]:
        """How many positions to commit, and the probability with which each is chosen."""
        masks = masks_of(view)
        left = masks / max(view.progress.block_masks, masks)
        time = times(steps, self.eps)
        behind = np.flatnonzero(time < left)
        first = max(step + 1, int(behind[0]) if len(behind) else steps)
        parts = np.float32(1) - time[first:] / np.float32(left)
        parts[-1] = 1  # The last time commits all.
        counts = (np.float32(masks) * parts).astype(np.int64)
        enough = int(np.argmax(counts >= 1))
        return int(counts[enough]), float(parts[enough])

    def _otherwise(self, view: View, step: int, steps: int) -> Positions:
        count, part = self._planned(view, step, steps)
        if self.score == "autoregressive":
            return view.best(-view.positions.astype(np.float64), 1)
        draw = view.uniform(step)
        if self.score == "origin":
            return view.best(draw, count)
        return view.positions[view.eligible & (draw < part)]
