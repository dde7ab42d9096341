"""The loop of policies that look at a decided block again and correct it."""

from __future__ import annotations

from paradecode.core.decoder import Steps
from paradecode.core.sequence import TokenSequence
from paradecode.methods.canvas.caches.base import RowPlan, everything, marks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Marks
from paradecode.methods.canvas.loop import Unmask, decided, fitting
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View, Window


class Corrector(Policy):
    """A policy that :class:`Correct` runs.

    Attributes:
        after: forwards of a block without masks, at most.
        kept: bool [N], the decided positions that it must not change: those that it did not
            decide itself, and those whose text was shown.
    """

    revises = True
    after: int
    kept: Marks

    def start(self, canvas: Canvas) -> None:
        self.kept = ~canvas.masked

    def corrections(self, view: View) -> Decision:
        """The decision in a block without masks; it may do nothing."""
        raise NotImplementedError


class Correct(Unmask):
    """Looks at each decided block again, until nothing more is corrected in it."""

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
    """Compute a decided window once more; exact where the cache before it is."""
    first = window.start // canvas.block * canvas.block if canvas.block else 0
    if first == 0 or not canvas.cached[:first].all():
        return everything(canvas, window, store=False)
    rows = marks(canvas, first, canvas.reach(window.end))
    finished = canvas.edge // canvas.block * canvas.block
    return RowPlan(rows, rows & marks(canvas, 0, finished), marks(canvas, 0, first))
