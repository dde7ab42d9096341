"""The samplers of Dream, DiffuCoder and Dimple, which follow a time schedule of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.methods.canvas.canvas import Canvas, Decision, Positions, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.placed import place, read_placed
from paradecode.methods.canvas.policies.base import (
    NAMES,
    SCORES,
    Planned,
    masks_of,
    noisy,
    scores_of,
    share,
    times,
)
from paradecode.methods.parts import choice, parameter, text

# The sampler of Dream and DiffuCoder, on its own time schedule.

FINEST = 64
"""The most steps per mask into which ``origin`` is divided. More steps hardly change the text."""


@policy(
    "dream",
    paper="Dream 7B: Diffusion Large Language Models",
    arxiv="2508.15487",
    aliases=("diffucoder",),
    names={"alg": "score", "alg_temp": "noise"},
    defaults={"blocks": "full"},
)
class Dream(Planned):
    """Commit the share of masks that the schedule sets for each planned step, best first.

    Step j of T commits int(masks * (1 - t(j + 1) / t(j))) positions, and the last step commits all;
    t falls from 1 to ``eps`` in even steps. Because of the int(), a plan of one step per token
    commits nothing in its first step and two tokens in its last; ``schedule=even`` has no such
    gaps. A step that commits nothing is skipped, because its forward pass would see the same canvas
    again.

    The model's own script reads the confidence after temperature and top-p, and draws new random
    numbers in each step. Here, as in all canvas methods, the confidence is the probability at
    temperature 1, and each position has one fixed random number. ``origin`` ranks nothing: each
    mask is revealed with the step's probability. It runs at most 64 steps per mask, because more
    would hardly change which masks are revealed together.

    When: results of the models' own scripts are to be repeated. The number of forwards is planned,
    whatever the text.
    """

    score: str = choice("entropy", (*SCORES, *NAMES, "origin"), "score that ranks the positions")
    noise: float = parameter(0.0, 0.0, 1e6, "temperature of the ranking; 0: the best positions")
    schedule: str = choice("dream", ("dream", "even"), "even: counts are rounded, not truncated")
    eps: float = parameter(1e-3, 1e-6, 0.5, "time at the last step")

    def decide(self, view: View) -> Decision:
        if self.begins(view):
            self.parts = self._plan(view)
        if self.score == "origin":
            return Decision(self._reveal(view))
        step = self._next(view)
        self.step = step + 1
        if step == len(self.parts) - 1:
            return Decision(view.positions[view.eligible])
        scores = noisy(view, scores_of(view, self.score), self.noise, step)
        return Decision(view.best(scores, int(self._counts(view, step)[0])))

    def _plan(self, view: View) -> NDArray[np.float32]:
        """Return float32 [T]: the share of the masks that each planned step commits."""
        steps = share(view.progress)
        if self.score == "origin":
            steps = min(steps, FINEST * max(view.progress.block_masks, 1))
        if self.schedule == "even":
            return np.float32(1) / np.arange(steps, 0, -1, dtype=np.float32)
        time = times(steps, self.eps)
        parts: NDArray[np.float32] = np.float32(1) - time[1:] / time[:-1]
        parts[-1] = 1  # The last step commits all.
        return parts

    def _counts(self, view: View, since: int) -> Positions:
        """Return int64: the number of present masks that each step from ``since`` on commits."""
        masks, steps = masks_of(view), len(self.parts)
        if self.schedule == "even":
            left = view.progress.block_masks * np.arange(steps - since - 1, -1, -1) // steps
            return masks - left
        return (np.float32(masks) * self.parts[since:]).astype(np.int64)

    def _next(self, view: View) -> int:
        """Return the next step that commits something, or the last step."""
        last = len(self.parts) - 1
        if self.step >= last:
            return last
        counts = self._counts(view, self.step)
        counts[-1] = 1
        return self.step + int(np.argmax(counts > 0))

    def _reveal(self, view: View) -> Positions:
        """Return the masks to reveal, drawn by random numbers fixed by step and position."""
        chosen, last = view.positions[:0], len(self.parts) - 1
        while not len(chosen):
            step = min(self.step, last)
            shown = view.uniform(step) < self.parts[step]
            chosen = view.positions[view.eligible & (shown | (step == last))]
            self.step += 1
        return chosen


# Confident decoding with tokens placed beforehand.

OTHERS = ("origin", "origin_ratio", "autoregressive")
"""Values of ``score`` that choose a position only where no probability passes the threshold."""


@policy(
    "dimple",
    paper="Dimple: Discrete Diffusion Multimodal Large Language Model with Parallel Decoding",
    arxiv="2505.16990",
    names={"alg": "score", "gamma": "threshold", "alg_p_threshold": "threshold",
           "alg_temp": "noise", "structure_prior": "prior"},
    defaults={"blocks": "full"},
)  # fmt: skip
class Dimple(Planned):
    """Commit positions with scores above the threshold, or as many as the time schedule sets.

    The schedule is Dream's. Its time is first moved on to match the share of masks that are left
    now, and then to the next step that commits at least one position. This step takes the positions
    with the best ``score``. ``origin`` takes a random subset, ``origin_ratio`` takes each position
    with the step's probability, ``autoregressive`` takes the leftmost one. The threshold is
    compared with the score, which is never above 0 for ``entropy``.

    ``prior`` places tokens (keys of a JSON record, "Step 1:", an end of text that fixes the
    length). They are never scored, and the model fills in the positions around them.

    When: parts of the answer are known beforehand, such as the keys of a record; or a threshold
    shall never be slower than a plan.
    """

    threshold: float = parameter(0.95, -100.0, 1.0, "commit scores above this; 1: schedule only")
    score: str = choice("confidence", (*SCORES, *NAMES, *OTHERS), "score that ranks the positions")
    noise: float = parameter(0.0, 0.0, 1e6, "temperature of the ranking; 0: the best positions")
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
        """Return the number of positions to commit, and the probability of each to be chosen."""
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
