"""Inside a block of the model only a sub-block is computed; finished blocks are exact."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput
from paradecode.decoders.diffusion.caches import CACHES
from paradecode.decoders.diffusion.caches.base import Cache, Plan, exact_prefix, marks
from paradecode.decoders.diffusion.canvas import Canvas
from paradecode.decoders.diffusion.view import Window


@CACHES.add("two_level")
@dataclass
class TwoLevelCache(Cache):
    """Fast-dLLM v2's caches (arXiv 2509.26328): of finished blocks, and of the rest of this one.

    For models with blocks of their own. The sub-block is the window: ``block_length=8`` and
    ``blocks=fixed`` for a model with blocks of 32. Its first forward computes the whole block of
    the model, and so does every one until the first position of the sub-block is decided; the
    others compute the sub-block against the block's stale keys and values.

    The forward that begins the next block also computes the finished one, from its final tokens
    alone, so that nothing stale is left in front of it. (The released code spends a forward of its
    own on that, and takes the next block's first token from it.)
    """

    exact = 0

    def start(self, canvas: Canvas) -> None:
        if canvas.block == 0:
            raise InvalidInput(
                "cache", "two_level", "the model has no blocks of its own; use dual or delayed"
            )

    def plan(self, canvas: Canvas, window: Window) -> Plan:
        if canvas.block == 1:
            return exact_prefix(canvas, window)
        if self._whole(canvas, window):
            rows = marks(canvas, self.exact, canvas.reach(window.end))
            seen = marks(canvas, 0, self.exact)
            self.exact = canvas.edge // canvas.block * canvas.block
            return Plan(rows, rows, seen)
        rows = marks(canvas, window.start, window.end)
        if canvas.shift and window.start % canvas.block == 0:
            # Its logits are those of a row that must not see this block: leave it as it is.
            rows[window.start] = False
        return Plan(rows, rows, marks(canvas, 0, canvas.reach(window.end)) & ~rows)

    def _whole(self, canvas: Canvas, window: Window) -> bool:
        """Whether the forward computes the whole block of the model."""
        start, end = window.start, canvas.reach(window.end)
        begin = start // canvas.block * canvas.block
        alone = start <= max(begin, canvas.start) and window.end == end
        stale = start == begin and canvas.shift and canvas.stored[start] != canvas.tokens[start]
        several = end != canvas.reach(start + 1)
        return self.due(window) or bool(canvas.masked[start] or alone or stale or several)
