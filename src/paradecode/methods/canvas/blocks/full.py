"""No blocks."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.blocks.base import Blocks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare


@declare("blocks", "full", paper="Dream", arxiv="2508.15487")
@dataclass
class Full(Blocks):
    """The whole canvas is one block: Dream's way (arXiv 2508.15487)."""

    def window(self, canvas: Canvas) -> Window:
        return Window(canvas.start, canvas.end)
