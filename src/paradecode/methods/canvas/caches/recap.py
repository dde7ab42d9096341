"""Between two forwards of everything, only the positions that are decided next are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Decision, View, Window
from paradecode.methods.parts import declare, parameter


@declare("cache", "recap", guarantee="lossy", paper="ReCAP", arxiv="2505.19089")
@dataclass
class Recap(CacheRule):
    """ReCAP (arXiv 2505.19089): a forward of everything chooses a group, and local ones fill it.

    The group is what the full forward decided and the masks of the window that it was surest of
    next. Each of the ``local`` forwards that follow computes the group alone, every time anew,
    against the keys and values that the full forward has for all other positions. So what was just
    decided in the group is taken into account, and nothing outside of it changes.

    The paper decodes images in an order that the full forward fixes; here the policy ranks the
    group's masks anew after each local forward. A group that is filled early ends early.
    """

    local: int = parameter(1, 0, 4096, "forwards of the group after each full one; 0: no cache")
    group: int = parameter(
        0, 0, 1 << 20, "masks left to the local forwards; 0: as many as the full one decided, each"
    )
    warmup: int = parameter(0, 0, 1 << 20, "full forwards before the first group")

    def start(self, canvas: Canvas) -> None:
        self._group = np.zeros(canvas.end, bool)

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        group = self._group[: canvas.end] & canvas.masked
        filled = not group[window.start : window.end].any()
        self._asked |= filled or canvas.steps <= self.warmup
        if self.due(window, self.local + 1):
            return everything(canvas, window)
        rows = group | (canvas.stored != canvas.tokens)
        return some(rows, store=False)

    def after(self, view: View, decision: Decision) -> None:
        super().after(view, decision)
        if view.refresh:
            left = view.eligible & ~np.isin(view.positions, decision.commit)
            order = np.argsort(np.where(left, -view.confidence, np.inf), kind="stable")
            count = self.group or self.local * max(1, len(decision.commit))
            self._group[:] = False
            self._group[view.positions[order[: min(count, int(left.sum()))]]] = True
