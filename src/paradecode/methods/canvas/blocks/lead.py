"""Blocks whose first token is decided as an autoregressive model would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paradecode.methods.canvas.blocks.fixed import FixedBlocks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare


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
