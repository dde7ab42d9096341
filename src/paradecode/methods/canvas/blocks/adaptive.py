"""Blocks that end where the model expects a sentence, a line or a step to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.blocks.base import Blocks, limit
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import View, Window
from paradecode.methods.parts import declare, parameter, text

NEWLINE = "198"
"""The line feed of the vocabularies of GPT-2, Llama 3, Qwen, SmolLM2 and LLaDA."""


def read_tokens(text: str) -> np.ndarray:
    """Token ids in a text such as ``'198 271'``; raises ValueError for any other text."""
    numbers = text.split()
    if not all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers):
        raise ValueError("give token ids separated by spaces, as in '198 271'")
    return np.array(numbers, np.int64)


@declare("blocks", "adaptive", paper="AdaBlock", arxiv="2509.26432")
@dataclass
class Adaptive(Blocks):
    """AdaBlock (arXiv 2509.26432): a block ends with the most confident delimiter just ahead.

    The first forward of a block looks at the next ``ahead`` of the output. If the delimiter that is
    proposed there with the highest confidence reaches ``threshold``, the block ends with it, and
    otherwise after ``block_length`` positions. That same forward commits the block's first tokens.

    In the paper's algorithm the look-ahead is a share of what was decoded so far; in its code, and
    here, it is a share of the whole output. For a model with blocks of its own a block stays inside
    one of them.
    """

    threshold: float = parameter(
        0.3, 0.0, 1.01, "confidence at which a delimiter ends the block; Dream: 0.5"
    )
    ahead: float = parameter(
        0.25, 0.0, 1.0, "part of the output in which delimiters are looked for"
    )
    delimiters: str = text(read_tokens, "token ids, as in '198 271'; by default 198, a line feed")

    def start(self, canvas: Canvas, block_length: int) -> None:
        super().start(canvas, block_length)
        self._ids = read_tokens(self.delimiters or NEWLINE)
        self._reach = int(self.ahead * (canvas.end - canvas.start))
        self._first = self._end = canvas.start
        self._block, self._open = -1, False

    def window(self, canvas: Canvas) -> Window:
        if canvas.edge >= self._end or self._open:
            self._block += not self._open
            self._first, self._open = canvas.edge, True
            widest = self._first + max(self.block_length, self._reach)
            self._end = min(widest, limit(canvas, self._first))
        return Window(self._first, min(self._end, canvas.end), self._block)

    def narrow(self, view: View) -> Window:
        if self._open:
            self._open = False
            self._end = min(self._first + self._length(view), view.window.end)
        return Window(self._first, min(self._end, view.canvas.end), self._block)

    def _length(self, view: View) -> int:
        """Length of the block that begins, in positions."""
        near = view.eligible & (view.positions < self._first + self._reach)
        found = np.flatnonzero(near & np.isin(view.proposals, self._ids))
        if len(found):
            best = found[view.confidence[found].argmax()]
            if view.confidence[best] >= self.threshold:
                return int(view.positions[best]) - self._first + 1
        return self.block_length
