"""A token enters the cache one step after it was decided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.noise import Purpose, key, uniform
from paradecode.methods.canvas.caches.base import CacheRule, Marks, RowPlan, everything, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Decision, Scores, View, Window
from paradecode.methods.parts import choice, declare, parameter


@declare("cache", "dkv", guarantee="lossy", paper="dKV-Cache", arxiv="2505.15781")
@dataclass
class DelayedKV(CacheRule):
    """dKV-Cache-Decode (arXiv 2505.15781): keys and values change most when a mask is decided.

    So they are taken from the first forward that reads the real token, and kept until the next
    forward of everything. All masks of the canvas are computed in every forward. The first two
    forwards of a block compute everything.

    Models with a shift: the row to the left of a mask of the window is computed as well, even if
    its own token was cached (the paper's ``un_right``, inside the window).
    """

    refresh: int = parameter(8, 1, 4096, "compute all every n forwards; the paper has 16 for Dream")
    _again = False

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        begins = window.block != self._block
        if self.due(window, self.refresh) or self._again:
            self._again = begins
            return everything(canvas, window, store=~canvas.masked)
        return RowPlan(~canvas.final, ~canvas.final & ~canvas.masked, canvas.final)


@declare("cache", "dkv_greedy", guarantee="lossy", paper="dKV-Cache", arxiv="2505.15781")
@dataclass
class GreedyDelayedKV(CacheRule):
    """dKV-Cache-Greedy (arXiv 2505.15781): a forward costs a few rows, whatever the length.

    It computes the tokens that were just decided, the masks that are next, and the ``neighbours``
    masks nearest to each of those; the keys and values of all else, other masks included, are from
    earlier forwards. Next are as many masks as the last forward decided.

    Which ones those are is known for a random order only, the one that the paper has:
    ``order=random`` with the policy ``static(score=random)``. For other policies they are the masks
    of the window that the model was surest of when it last saw them.
    """

    refresh: int = parameter(2, 1, 4096, "compute all every n forwards")
    neighbours: int = parameter(4, 0, 4096, "masks computed around each one that is next")
    order: str = choice("confidence", ("confidence", "random"), "which masks are next")

    def start(self, canvas: Canvas) -> None:
        self._scores: Scores = np.full(canvas.end, -np.inf)
        self._count = 1

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            return everything(canvas, window)
        rows = (canvas.stored != canvas.tokens) | self._next(canvas, window)
        return some(rows)

    def after(self, view: View, decision: Decision) -> None:
        super().after(view, decision)
        self._count = max(1, len(decision.commit))
        if self.order == "random":
            everywhere = np.arange(len(self._scores))
            self._scores = uniform(key(view.seed, 0, Purpose.ORDER), everywhere)
        else:
            self._scores[view.positions] = view.confidence

    def _next(self, canvas: Canvas, window: Window) -> Marks:
        """The masks that are expected to be decided next, and the masks around them."""
        masked = np.flatnonzero(canvas.masked)
        inside = np.flatnonzero((masked >= window.start) & (masked < window.end))
        order = np.argsort(-self._scores[masked[inside]], kind="stable")
        around = np.arange(len(masked))
        chosen = np.zeros(canvas.end, bool)
        for center in inside[order[: self._count]].tolist():
            nearest = np.argsort(abs(around - center), kind="stable")  # The left one of two first.
            chosen[masked[nearest[: self.neighbours + 1]]] = True
        return chosen
