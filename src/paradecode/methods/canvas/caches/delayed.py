"""A cache around a sliding window: positions that it has just left are computed once more."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, marks, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare, parameter


@declare(
    "cache", "delayed", guarantee="lossy", paper="Deferred Commitment Decoding", arxiv="2601.02076"
)
@dataclass
class DelayedCache(CacheRule):
    """The dual cache of Deferred Commitment Decoding (arXiv 2601.02076), for sliding windows.

    A forward computes from where the *last* window began to the furthest end of any so far, and
    ``delay`` positions more on either side, but none of the prompt, so that no token leaves the
    window with the keys and values of a mask. All is computed anew whenever ``refresh`` tokens were
    decided. (The paper's prefix variant, which computes all behind the window, is left out.)
    """

    refresh: int = parameter(32, 1, 1 << 20, "tokens decided between two forwards of everything")
    delay: int = parameter(2, 0, 4096, "positions on either side that are computed as well")
    start_before = left = end = 0

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        start, self.start_before = self.start_before, window.start
        self.end = max(self.end, window.end)
        masks = int(canvas.masked.sum())
        self._asked |= masks <= self.left - self.refresh
        if self.due(window):
            self.left = masks
            return everything(canvas, window)
        first = max(min(start, window.start) - self.delay, canvas.start)
        rows = marks(canvas, first, self.end + self.delay) | (canvas.stored != canvas.tokens)
        return some(rows)
