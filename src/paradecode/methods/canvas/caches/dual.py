"""Keys and values of everything outside of the block are kept while the block is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, marks, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare


@declare("cache", "dual", guarantee="lossy", paper="Fast-dLLM", arxiv="2505.22618")
@dataclass
class DualCache(CacheRule):
    """Fast-dLLM's dual cache (arXiv 2505.22618): the masks after the block are cached as well.

    For models with blocks of their own nothing after the block is seen: it is the prefix cache.
    """

    refresh: int = parameter(0, 0, 4096, "also compute all every n forwards; 0: a block's first")

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            return everything(canvas, window)
        rows = marks(canvas, window.start, window.end)
        return some(rows)
