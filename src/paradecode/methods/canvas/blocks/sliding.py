"""A window that always holds the same number of masks and slides on past what is decided."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from paradecode.methods.canvas.blocks.base import Blocks, limit
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare, parameter

LEFT = (
    "tokens that the window has left would stay cached as the masks that they were; "
    "use delayed, which computes them once more"
)
"""The reason why the dual cache does not work with sliding blocks."""


@declare("blocks", "sliding", paper="Deferred Commitment Decoding", arxiv="2601.02076")
@dataclass
class Sliding(Blocks):
    """The first masks of the canvas, wherever they are: an unsure position holds nothing up.

    Deferred Commitment Decoding (arXiv 2601.02076): the window begins with the first mask and ends
    behind the ``masks``-th one, but is at most ``width`` positions wide. With a width as large as
    the canvas it is the window of Window-Diffusion (arXiv 2601.20332), whose cache is ``window``.
    For a model with blocks of its own the window stays inside one of them.

    It is one block to caches and schedules: nothing is refreshed because the window moves.
    """

    clashes = MappingProxyType({"cache=dual": LEFT})

    masks: int = parameter(16, 1, 1 << 20, "masks in the window")
    width: int = parameter(128, 1, 1 << 20, "most positions from its first mask to its end")

    def window(self, canvas: Canvas) -> Window:
        masked = np.flatnonzero(canvas.masked)[: self.masks]
        start = int(masked[0])
        end = min(int(masked[-1]) + 1, start + self.width, limit(canvas, start))
        return Window(start, end, span=(canvas.start, canvas.end))
