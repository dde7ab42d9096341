"""A policy that leaves unsure positions open, in a window that slides on around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.policies.static import SCORES
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parts import choice, parameter


@policy(
    "deferred",
    paper="Deferred Commitment Decoding for Diffusion Language Models with Confidence-Aware "
    "Sliding Windows",
    arxiv="2601.02076",
    aliases=("dcd", "deferred-commitment"),
    names={"tau": "threshold"},
    defaults={"blocks": "sliding"},
)
@dataclass
class Deferred(Policy):
    """Commit what passes the threshold, and cut the canvas behind a committed end of text.

    The window is the other half of the method: ``blocks=sliding``, its default, keeps a number of
    masks in it, so that an unsure position waits for its right context instead of being forced at
    the end of a block. The paper's cache is ``cache=delayed``; its extension of the blocks of
    semi-causal models is not here.

    When: fixed blocks force unsure tokens at their ends, and no block length suits all texts.
    """

    threshold: float = parameter(0.9, -100.0, 1.01, "least score; the best one always passes")
    score: str = choice(
        "confidence", ("confidence", "margin", "entropy"), "entropy: minus the entropy, in nats"
    )

    def decide(self, view: View) -> Decision:
        scores = SCORES[self.score](view)
        sure = int((view.eligible & (scores >= self.threshold)).sum())
        commit = np.sort(view.best(scores, max(sure, 1)))
        ends = np.isin(view.proposals[view.rows(commit)], view.canvas.stops)
        if not ends.any():
            return Decision(commit)
        end = int(commit[ends.argmax()])
        return Decision(commit[commit <= end], truncate=end + 1)
