"""Inside a block of the model only a sub-block is computed; finished blocks are exact."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, exact_prefix, marks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare


@declare("cache", "two_level", guarantee="lossy", paper="Fast-dLLM v2", arxiv="2509.26328")
@dataclass
class TwoLevelCache(CacheRule):
    """Fast-dLLM v2's caches (arXiv 2509.26328): of finished blocks, and of the rest of this one.

    For models with blocks of their own. The sub-block is the window, and what of the prompt shares
    it: ``block_length=8`` and ``blocks=lead`` (or ``fixed``) for a model with blocks of 32. Its
    first forward computes the whole block of the model, and so does every one until the first
    position of the sub-block is decided; the others compute the sub-block against the block's stale
    keys and values.

    The forward that begins the next block also computes the finished one, from its final tokens
    alone, so that nothing stale is left in front of it. (The released code spends a forward of its
    own on that, and takes the next block's first token from it.)
    """

    exact = 0

    def start(self, canvas: Canvas) -> None:
        if canvas.block == 0:
            raise InvalidInput(
                "cache", "two_level", "the model has no blocks of its own; use dual or delayed"
            )

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        if canvas.block == 1:
            return exact_prefix(canvas, window)
        finished = canvas.edge // canvas.block * canvas.block
        self.exact = min(self.exact, finished)  # A policy may have masked a finished block again.
        if self._whole(canvas, window):
            rows = marks(canvas, self.exact, canvas.reach(window.end))
            seen = marks(canvas, 0, self.exact)
            self.exact = finished
            return RowPlan(rows, rows, seen)
        rows = marks(canvas, _begin(window), window.end)
        about = rows.copy()
        if canvas.shift and window.start % canvas.block == 0:
            # What is proposed for it is in the logits of a row that must not see this block.
            about[window.start] = False
        seen = marks(canvas, 0, canvas.reach(window.end)) & ~rows
        return RowPlan(rows, rows, seen, about=about)

    def stale(self, canvas: Canvas) -> bool:
        return canvas.block > 1

    def _whole(self, canvas: Canvas, window: Window) -> bool:
        """Whether the forward computes the whole block of the model."""
        start, end = _begin(window), canvas.reach(window.end)
        begin = start // canvas.block * canvas.block
        alone = start == begin and window.end == end
        stale = start == begin and canvas.shift and canvas.stored[start] != canvas.tokens[start]
        several = end != canvas.reach(start + 1)
        return self.due(window) or bool(canvas.masked[start] or alone or stale or several)


def _begin(window: Window) -> int:
    """The first position of the sub-block."""
    return window.start if window.begin is None else window.begin
