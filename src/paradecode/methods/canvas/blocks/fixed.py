"""Blocks from left to right: of one length, with a leading token, or the whole canvas."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@declare("blocks", "lead", paper="Fast-dLLM v2", arxiv="2509.26328")
@dataclass
class Lead(FixedBlocks):
    """Fixed blocks; the first position of each block of the model is decided first, and alone.

    Fast-dLLM v2's sampler (arXiv 2509.26328): the forward that computes a finished block from its
    final tokens also says what the next block begins with, for the model's logits are shifted. For
    other models, and inside of a block, this is ``fixed``.
    """

    def window(self, canvas: Canvas) -> Window:
        window = super().window(canvas)
        led = canvas.block > 1 and canvas.shift and window.start % canvas.block == 0
        if not led or not canvas.masked[window.start]:
            return window
        return replace(window, end=window.start + 1, span=(window.start, window.end))


@declare("blocks", "full", paper="Dream", arxiv="2508.15487")
@dataclass
class Full(Blocks):
    """The whole canvas is one block: Dream's way (arXiv 2508.15487)."""

    def window(self, canvas: Canvas) -> Window:
        return Window(canvas.start, canvas.end)
