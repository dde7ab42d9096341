"""A policy that commits all remaining positions when the answer no longer changes."""

from __future__ import annotations

import numpy as np

from paradecode.methods.canvas.canvas import Canvas, Decision, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.placed import place, read_placed
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.parts import parameter, text

EARLY, LATE = 0.33, 0.67
"""The shares of the planned steps at which the threshold falls."""


@policy(
    "prophet", paper="Diffusion Language Models Know the Answer Before Decoding", arxiv="2508.19982"
)
class Prophet(Wrapper):
    """Commit all that is left once the answer's mean gap of the two best logits is wide enough.

    The answer is the ``answer_length`` positions from ``answer_start`` on, or the positions behind
    the ``anchor`` (tokens placed beforehand, such as "The answer is"). With neither setting it
    never stops early, as in the released code. It does not stop early either while the forward pass
    has not computed all masks. This is so with caches that leave rows out, and with block-causal
    models before their last block.

    When: a short answer at a known place (a choice, a number behind "The answer is"), which settles
    long before the text around it.
    """

    observes = "canvas"

    high: float = parameter(7.5, -1e9, 1e9, "mean gap that ends decoding in the first third")
    middle: float = parameter(5.0, -1e9, 1e9, "mean gap that ends decoding in the second third")
    low: float = parameter(2.5, -1e9, 1e9, "mean gap that ends decoding in the last third")
    answer_start: int = parameter(-1, -1, 1 << 20, "offset of the answer; -1: behind the anchor")
    answer_length: int = parameter(5, 1, 1 << 20, "number of positions of the answer")
    anchor: str = text(read_placed, "tokens placed before the answer: '200:785 4226 374'")

    def start(self, canvas: Canvas) -> None:
        first = place(canvas, self.anchor, "prophet.anchor")
        if self.answer_start >= 0:
            first = canvas.start + self.answer_start
        known = self.answer_start >= 0 or bool(self.anchor)
        end = first + self.answer_length if known else 0
        first = min(first, canvas.shown_end - 1)  # It may be shorter than the caller thought.
        self.answer = np.arange(first, min(end, canvas.shown_end))
        super().start(canvas)

    def decide(self, view: View) -> Decision:
        masked = np.flatnonzero(view.canvas.masked)
        answer = self.answer[self.answer < view.canvas.end]
        if len(answer) and np.isin(np.append(answer, masked), view.positions).all():
            gap = float(view.gap[view.rows(answer)].mean())
            if gap >= self._enough((view.progress.step + 1) / view.progress.steps):
                return Decision(masked)
        return self.inner.decide(view)

    def _enough(self, done: float) -> float:
        if done < EARLY:
            return self.high
        return self.middle if done < LATE else self.low
