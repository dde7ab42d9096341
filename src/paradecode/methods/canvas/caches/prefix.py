"""Keys and values of what is left of the block are kept while the block is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, marks, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare


@declare("cache", "prefix", guarantee="lossy", paper="Fast-dLLM", arxiv="2505.22618")
@dataclass
class PrefixCache(CacheRule):
    """Fast-dLLM's prefix cache (arXiv 2505.22618); exact for models with blocks of their own.

    With full attention the prefix also depends on what is decided later, so that it is stale from
    the second forward of a block on. The block and the masks after it are always computed.
    """

    refresh: int = parameter(0, 0, 4096, "also compute all every n forwards; 0: a block's first")
    frozen = 0

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            self.frozen = window.start
            return everything(canvas, window, store=marks(canvas, 0, self.frozen))
        rows = marks(canvas, self.frozen, canvas.end)
        return some(rows, store=False)
