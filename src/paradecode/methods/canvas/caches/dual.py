"""Keys and values of everything outside of the block are kept while the block is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches import CACHES
from paradecode.methods.canvas.caches.base import (
    Cache,
    Plan,
    everything,
    exact_prefix,
    marks,
)
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.registry import parameter


@CACHES.add("dual")
@dataclass
class DualCache(Cache):
    """Fast-dLLM's dual cache (arXiv 2505.22618): the masks after the block are cached as well.

    For models with blocks of their own nothing after the block is seen: it is the prefix cache.
    """

    refresh: int = parameter(0, 0, 4096, "also compute all every n forwards; 0: a block's first")

    def plan(self, canvas: Canvas, window: Window) -> Plan:
        if canvas.block:
            return exact_prefix(canvas, window)
        if self.due(window, self.refresh):
            return everything(canvas, window, store=marks(canvas, 0, canvas.end))
        rows = marks(canvas, window.start, window.end)
        return Plan(rows, rows, ~rows)
