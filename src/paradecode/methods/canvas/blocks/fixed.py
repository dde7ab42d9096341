"""Blocks of one length, from left to right."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.canvas.blocks.base import Blocks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare


@declare("blocks", "fixed", paper="Large Language Diffusion Models", arxiv="2502.09992")
@dataclass
class FixedBlocks(Blocks):
    """Semi-autoregressive decoding: a block is finished before the next one begins.

    LLaDA (arXiv 2502.09992), section 2.4. For a model with blocks of its own the grid is the
    model's: the first block may begin with the end of the prompt.
    """

    def window(self, canvas: Canvas) -> Window:
        block = (canvas.edge - canvas.origin) // self.block_length
        start = canvas.origin + block * self.block_length
        end = min(start + self.block_length, canvas.end)
        if start < canvas.start:
            return Window(canvas.start, end, block, begin=start)
        return Window(start, end, block)
