"""Policies that correct decided tokens while other positions are filled in."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np

from paradecode.core.decoder import Steps, TokenSequence
from paradecode.methods.canvas.caches.base import RowPlan, everything, marks
from paradecode.methods.canvas.canvas import Canvas, Decision, Positions, View, Window
from paradecode.methods.canvas.feasible import Marks
from paradecode.methods.canvas.loop import Unmask, decided, fitting, policy
from paradecode.methods.canvas.policies.base import Policy, Wrapper
from paradecode.methods.parts import parameter


@policy(
    "refine",
    paper="From Denoising to Refining: A Corrective Framework for Vision-Language Diffusion Model",
    arxiv="2510.19871",
    aliases=("rediff",),
    names={"revise_start": "last", "revise_topk": "share"},
)
class Refine(Wrapper):
    """Replace decided tokens of the block for which the model now prefers another token.

    Candidates are tokens that were decided before this forward pass and are no longer the most
    probable of their position. The candidates with the most probable replacements are replaced: at
    most the ``share`` of all decided tokens, and only by tokens of at least probability ``least``.
    The paper replaces all candidates: ``least=0``. Nothing is replaced after the last commit of a
    block.

    The model must be trained to correct its input (`paradecode train refine`). Plain masked
    diffusion leaves the predictions at decided positions untrained, and the text falls apart;
    ``least=1.01`` turns the corrections off.

    When: the model was trained to correct its input, and early mistakes cost quality. Never with a
    model that was not trained for it.
    """

    observes = "window"
    revises = True

    least: float = parameter(0.7, 0.0, 1.01, "least probability of a correction; above 1: none")
    last: float = parameter(1.0, 0.0, 1.0, "share of the planned steps, at the end, that correct")
    share: float = parameter(1.0, 0.0, 1.0, "share of the decided tokens that may be replaced")

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


# Commit sure tokens, and correct decided ones: the sampler of LLaDA2.1.


class Corrector(Policy):
    """A policy that corrects decided tokens; :class:`Correct` is its loop.

    Attributes:
        after: the most forward passes of a block that has no masks left.
        kept: bool [N], decided positions that the policy must not change. The policy did not decide
            these positions, or their text was shown.
    """

    revises = True
    after: int
    kept: Marks

    def start(self, canvas: Canvas) -> None:
        self.kept = ~canvas.masked

    def corrections(self, view: View) -> Decision:
        """Return the decision for a block without masks. The decision may change nothing."""
        raise NotImplementedError


class Correct(Unmask):
    """The loop that runs each decided block again, until the policy corrects nothing in it."""

    policy: Corrector

    @property
    def patience(self) -> int:
        return super().patience + self.policy.after + 1  # A block may have one position.

    def decode(self, seq: TokenSequence) -> Steps:
        canvas = self.begin(seq)
        while not seq.finished:
            view = self.narrow((yield from self.look(*self.plan())))
            window, after = view.window, 0
            decision = yield from decided(self.policy, view)
            while True:
                masked = canvas.masked.copy()
                masked[decision.commit] = False
                after += not masked[window.start : window.end].any()
                last = after > self.policy.after or (after > 1 and not len(decision.commit))
                self.hold(not last)
                self.commit(view, decision)
                self.policy.kept[: self.shown] = True
                if after == 0 or last:
                    break
                view = yield from self.look(window, again(canvas, window))
                decision = self.policy.corrections(view)
                if canvas.rules is not None:
                    decision = fitting(view, decision, canvas.rules)


def again(canvas: Canvas, window: Window) -> RowPlan:
    """Return the plan that computes a decided window once more.

    It is exact if the cache before the window is exact.
    """
    first = window.start // canvas.block * canvas.block if canvas.block else 0
    if first == 0 or not canvas.cached[:first].all():
        return everything(canvas, window, store=False)
    rows = marks(canvas, first, canvas.reach(window.end))
    finished = canvas.edge // canvas.block * canvas.block
    return RowPlan(rows, rows & marks(canvas, 0, finished), marks(canvas, 0, first))


@policy(
    "edit",
    paper="LLaDA2.1: Speeding Up Text Diffusion via Token Editing",
    arxiv="2602.08676",
    aliases=("llada2.1", "joint-threshold"),
    names={"editing_threshold": "least", "edit_threshold": "least", "max_post_steps": "after",
           "max_post_edit_steps": "after"},
    driver=Correct,
)  # fmt: skip
class Edit(Corrector):
    """Commit tokens above the threshold, and replace decided tokens that became improbable.

    A decided token of the block is replaced if another token is now the most probable at its
    position and is more probable than ``least``. A block without masks is run again until nothing
    changes, at most ``after`` times. The prompt is never changed. Text that was shown is never
    changed either: with ``blocks=lead`` the first token of a block is corrected alone. The defaults
    are from the model's own code; its publishers also name 0.7 and 0.5.

    When: LLaDA2.1, whose default it is, and models that were trained to correct their input. With
    any other model texts get worse.
    """

    observes = "window"

    threshold: float = parameter(0.95, 0.0, 1.0, "commit what is above this, and always the best")
    least: float = parameter(0.9, 0.0, 1.0, "least probability of a replacement; 1: none")
    after: int = parameter(16, 0, 256, "most forwards of a block without masks")

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
        """Return decided positions of the block with another, probable enough best token."""
        at = view.positions
        ours = view.inside & ~view.canvas.masked[at] & ~self.kept[at]
        other = view.proposals != view.canvas.tokens[at]
        return at[ours & other & (view.confidence > self.least)]
