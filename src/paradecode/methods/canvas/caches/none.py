"""No cache: the reference of every other one."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare


@declare("cache", "none")
@dataclass
class NoCache(CacheRule):
    """Every forward computes every row."""

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        return everything(canvas, window, store=False)
