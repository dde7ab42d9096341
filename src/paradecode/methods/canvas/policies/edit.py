"""Commit what is sure, and correct what was decided: the sampler of LLaDA2.1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.correct import Correct, Corrector
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.view import Decision, Positions, View
from paradecode.methods.parameters import parameter


@policy(
    "edit",
    paper="LLaDA2.1: Speeding Up Text Diffusion via Token Editing",
    arxiv="2602.08676",
    aliases=("llada2.1", "joint-threshold"),
    names={"editing_threshold": "least", "edit_threshold": "least", "max_post_steps": "after",
           "max_post_edit_steps": "after"},
    driver=Correct,
)  # fmt: skip
@dataclass
class Edit(Corrector):
    """Commit what is more probable than the threshold; replace decided tokens of the block.

    Of the decided tokens of the block each is replaced whose position now has another best token
    that is more probable than ``least``. A block without masks is looked at again, until nothing
    changes, ``after`` times at most. Prompts are never changed, nor is text that was shown: with
    ``blocks=lead`` the first token of a block is corrected alone. The defaults are those of the
    model's own code; its publishers also name 0.7 and 0.5.

    When: LLaDA2.1, whose default it is, and models that were trained to correct what they see.
    With any other model texts get worse.
    """

    observes = "window"

    threshold: float = parameter(0.95, 0.0, 1.0, "commit what is more probable; always the best")
    least: float = parameter(0.9, 0.0, 1.0, "replace by what is more probable; 1: no corrections")
    after: int = parameter(16, 0, 256, "forwards of a block without masks, at most")

    def decide(self, view: View) -> Decision:
        sure = int((view.eligible & (view.confidence > self.threshold)).sum())
        best = view.best(view.confidence, max(sure, 1))
        changed = self._changed(view)
        commit = np.concatenate([best, changed])
        return Decision(commit, view.proposals[view.rows(commit)], revoke=changed)

    def corrections(self, view: View) -> Decision:
        changed = self._changed(view)
        return Decision(changed, view.proposals[view.rows(changed)], revoke=changed)

    def _changed(self, view: View) -> Positions:
        """Decided positions of the block, with another best token that is probable enough."""
        at = view.positions
        ours = view.inside & ~view.canvas.masked[at] & ~self.kept[at]
        other = view.proposals != view.canvas.tokens[at]
        return at[ours & other & (view.confidence > self.least)]
