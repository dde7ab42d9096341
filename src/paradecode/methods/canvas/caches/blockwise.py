"""No cache, and caches that keep what is outside of the block while the block is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, marks, some
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare, parameter


@declare("cache", "none")
@dataclass
class NoCache(CacheRule):
    """Every forward computes every row."""

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        return everything(canvas, window, store=False)

    def stale(self, canvas: Canvas) -> bool:
        return False


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
