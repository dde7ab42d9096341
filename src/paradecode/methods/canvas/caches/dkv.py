"""A token enters the cache one step after it was decided; masks are always computed."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare


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
