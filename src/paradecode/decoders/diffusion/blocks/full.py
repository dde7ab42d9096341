"""No blocks."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.decoders.diffusion.blocks import BLOCKS
from paradecode.decoders.diffusion.blocks.base import Blocks
from paradecode.decoders.diffusion.canvas import Canvas
from paradecode.decoders.diffusion.view import Window


@BLOCKS.add("full")
@dataclass
class Full(Blocks):
    """The whole canvas is one block: Dream's way (arXiv 2508.15487)."""

    def window(self, canvas: Canvas) -> Window:
        return Window(canvas.start, canvas.end)
