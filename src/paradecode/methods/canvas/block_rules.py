"""Block rules choose the window of the canvas whose masks may be decided in a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from paradecode.methods.canvas.canvas import Canvas, Decision, View, Window
from paradecode.methods.parts import declare, parameter, text


class Blocks:
    """Base class of block rules, which choose the positions whose masks may be decided next.

    A block rule is a dataclass, and each request has its own object. Fields declared with
    ``parameter`` or ``choice`` are settings: ``blocks=sliding(masks=16)``.

    Attributes:
        clashes: see :class:`Policy`.
    """

    clashes: Mapping[str, str] = MappingProxyType({})

    def start(self, canvas: Canvas, block_length: int) -> None:
        """Prepare the rule before the first forward; ``block_length`` is the method's setting."""
        self.block_length = block_length

    def window(self, canvas: Canvas) -> Window:
        """Return the window of the next forward pass. The window must contain a masked position."""
        raise NotImplementedError

    def narrow(self, view: View) -> Window:
        """Return the part of the view's window in which masks may be decided after its forward.

        The part must have a masked position.
        """
        return view.window

    def after(self, view: View, decision: Decision) -> None:
        """Update the rule after a decision was applied to the canvas."""


def limit(canvas: Canvas, start: int) -> int:
    """Return one past the last position that a window may have if it begins at ``start``.

    In a block-causal model this is the end of the block that contains ``start``: the model was
    trained with all earlier blocks decided, so a window must not enter the next block.
    """
    return canvas.reach(start + 1) if canvas.block > 1 else canvas.end


@declare("blocks", "fixed", paper="Large Language Diffusion Models", arxiv="2502.09992")
class FixedBlocks(Blocks):
    """Semi-autoregressive decoding: a block is finished before the next one begins.

    LLaDA (arXiv 2502.09992), section 2.4. In a block-causal model the blocks are the model's own
    blocks, so the first one may begin with the end of the prompt.
    """

    def window(self, canvas: Canvas) -> Window:
        block = (canvas.edge - canvas.origin) // self.block_length
        start = canvas.origin + block * self.block_length
        end = min(start + self.block_length, canvas.end)
        if start < canvas.start:
            return Window(canvas.start, end, block, begin=start)
        return Window(start, end, block)


@declare("blocks", "lead", paper="Fast-dLLM v2", arxiv="2509.26328")
class Lead(FixedBlocks):
    """Fixed blocks; the first position of each of the model's blocks is decided first, and alone.

    This is the sampler of Fast-dLLM v2 (arXiv 2509.26328). The logits of its model are shifted by
    one position: the forward pass that computes a finished block from its final tokens also
    predicts the first position of the next block. In all other blocks, and for all other models,
    this rule is the same as ``fixed``.
    """

    def window(self, canvas: Canvas) -> Window:
        window = super().window(canvas)
        led = canvas.block > 1 and canvas.shift and window.start % canvas.block == 0
        if not led or not canvas.masked[window.start]:
            return window
        return replace(window, end=window.start + 1, span=(window.start, window.end))


@declare("blocks", "full", paper="Dream", arxiv="2508.15487")
class Full(Blocks):
    """The whole canvas is one block, as in Dream (arXiv 2508.15487)."""

    def window(self, canvas: Canvas) -> Window:
        return Window(canvas.start, canvas.end)


# Blocks that follow the text: a window that slides on, and blocks that end where a sentence does.

LEFT = (
    "tokens that the window has left would stay cached as the masks that they were; "
    "use delayed, which computes them once more"
)
"""The reason why the dual cache does not work with sliding blocks."""


@declare("blocks", "sliding", paper="Deferred Commitment Decoding", arxiv="2601.02076")
class Sliding(Blocks):
    """The window holds the next masks of the canvas, so that an unsure position delays no other.

    Deferred Commitment Decoding (arXiv 2601.02076): the window begins with the first mask and ends
    after the ``masks``-th mask, but is at most ``width`` positions wide. If ``width`` is as large
    as the canvas, this is the window of Window-Diffusion (arXiv 2601.20332). The cache of
    Window-Diffusion is ``cache=window``. In a block-causal model the window stays inside one block.

    Cache rules and step schedules treat the sliding window as one block: a moved window refreshes
    nothing.
    """

    clashes = MappingProxyType({"cache=dual": LEFT})

    masks: int = parameter(16, 1, 1 << 20, "number of masks in the window")
    width: int = parameter(128, 1, 1 << 20, "most positions of the window from its first mask on")

    def window(self, canvas: Canvas) -> Window:
        masked = np.flatnonzero(canvas.masked)[: self.masks]
        start = int(masked[0])
        end = min(int(masked[-1]) + 1, start + self.width, limit(canvas, start))
        return Window(start, end, span=(canvas.start, canvas.end))


# Blocks that end where the model expects a sentence, a line or a step to end.

NEWLINE = "198"
"""Token id of the line feed in the vocabularies of GPT-2, Llama 3, Qwen, SmolLM2 and LLaDA."""


def read_tokens(text: str) -> np.ndarray:
    """Return the token ids of a text such as ``'198 271'``; raise ValueError for any other text."""
    numbers = text.split()
    if not all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers):
        raise ValueError("give token ids separated by spaces, as in '198 271'")
    return np.array(numbers, np.int64)


@declare("blocks", "adaptive", paper="AdaBlock", arxiv="2509.26432")
class Adaptive(Blocks):
    """AdaBlock (arXiv 2509.26432): a block ends with the most confident delimiter just ahead.

    The first forward pass of a block proposes tokens for the next positions of the output. Among
    the proposed delimiters (``delimiters``), the most confident one ends the block if its
    confidence is at least ``threshold``. If it is below, the block has ``block_length`` positions.
    The same forward also commits the first tokens of the block.

    ``ahead`` is the share of the whole output in which delimiters are looked for, as in the paper's
    code. (In the paper's algorithm it is a share of the decided positions.) In a block-causal model
    the block stays inside one of the model's blocks.
    """

    threshold: float = parameter(
        0.3, 0.0, 1.01, "confidence at which a delimiter ends the block; Dream: 0.5"
    )
    ahead: float = parameter(
        0.25, 0.0, 1.0, "share of the output in which a delimiter may end the block"
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
        """Return the number of positions of the block that begins now."""
        near = view.eligible & (view.positions < self._first + self._reach)
        found = np.flatnonzero(near & np.isin(view.proposals, self._ids))
        if len(found):
            best = found[view.confidence[found].argmax()]
            if view.confidence[best] >= self.threshold:
                return int(view.positions[best]) - self._first + 1
        return self.block_length
