"""Cache rules that store the keys and values outside of the block that is being decoded."""

from __future__ import annotations

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.caches.base import (
    CacheRule,
    RowPlan,
    everything,
    exact_prefix,
    marks,
    some,
)
from paradecode.methods.canvas.canvas import Canvas, Window
from paradecode.methods.parts import declare, parameter


@declare("cache", "none")
class NoCache(CacheRule):
    """Every forward pass computes every row."""

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        return everything(canvas, window, store=False)

    def stale(self, canvas: Canvas) -> bool:
        return False


@declare("cache", "prefix", guarantee="lossy", paper="Fast-dLLM", arxiv="2505.22618")
class PrefixCache(CacheRule):
    """Fast-dLLM's prefix cache (arXiv 2505.22618); exact for block-causal models.

    Each forward pass computes the block and all positions after it. With full attention the keys
    and values of the prefix also depend on tokens that are decided later. Therefore the cache is
    stale from the second forward of a block on.
    """

    refresh: int = parameter(0, 0, 4096, "compute all rows every n forwards; 0: once a block")
    frozen = 0

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            self.frozen = window.start
            return everything(canvas, window, store=marks(canvas, 0, self.frozen))
        rows = marks(canvas, self.frozen, canvas.end)
        return some(rows, store=False)


@declare("cache", "dual", guarantee="lossy", paper="Fast-dLLM", arxiv="2505.22618")
class DualCache(CacheRule):
    """Fast-dLLM's dual cache (arXiv 2505.22618): the masks after the block are cached as well.

    In block-causal models no row attends to a later block, so this is the same as the prefix cache.
    """

    refresh: int = parameter(0, 0, 4096, "compute all rows every n forwards; 0: once a block")

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            return everything(canvas, window)
        rows = marks(canvas, window.start, window.end)
        return some(rows)


# A cache around a sliding window: positions that it has just left are computed once more.


@declare(
    "cache", "delayed", guarantee="lossy", paper="Deferred Commitment Decoding", arxiv="2601.02076"
)
class DelayedCache(CacheRule):
    """The dual cache of Deferred Commitment Decoding (arXiv 2601.02076), for sliding windows.

    Each forward pass computes the positions from the start of the *previous* window to the furthest
    end of any window so far, and ``delay`` more positions on either side, but no position of the
    prompt. So no token leaves the window with keys and values that were computed from a mask. Every
    row is computed again whenever ``refresh`` more tokens have been decided. (The paper's prefix
    variant, which computes all positions after the start of the window, is not implemented.)
    """

    refresh: int = parameter(32, 1, 1 << 20, "decided tokens after which all rows are computed")
    delay: int = parameter(2, 0, 4096, "positions on either side that are computed as well")
    start_before = left = end = 0

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        start, self.start_before = self.start_before, window.start
        self.end = max(self.end, window.end)
        masks = int(canvas.masked.sum())
        self._asked |= masks <= self.left - self.refresh
        if self.due(window):
            self.left = masks
            return everything(canvas, window)
        first = max(min(start, window.start) - self.delay, canvas.start)
        rows = marks(canvas, first, self.end + self.delay) | (canvas.stored != canvas.tokens)
        return some(rows)


# Inside one of the model's blocks only a sub-block is computed; finished blocks are exact.


@declare("cache", "two_level", guarantee="lossy", paper="Fast-dLLM v2", arxiv="2509.26328")
class TwoLevelCache(CacheRule):
    """Fast-dLLM v2's two caches (arXiv 2509.26328), for finished blocks and for the present block.

    This cache is for block-causal models. The window is a sub-block of the model's block: for a
    model with blocks of 32 positions, set ``block_length=8`` and ``blocks=lead`` (or ``fixed``).
    Until the first position of the sub-block is decided, a forward pass computes the whole block of
    the model. Later forwards compute the sub-block alone, which attends to the block's stale keys
    and values. Prompt tokens in the first sub-block are computed with it.

    The forward that begins the next block also computes the finished block from its final tokens,
    so that the next block attends to no stale keys. (The released code runs a separate forward for
    the finished block, and takes the next block's first token from that forward.)
    """

    exact = 0

    def start(self, canvas: Canvas) -> None:
        if canvas.block == 0:
            raise InvalidInput(
                "cache", "two_level", "the model has no blocks of its own; use dual or delayed"
            )

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        if canvas.block == 1:
            return exact_prefix(canvas, window)
        finished = canvas.edge // canvas.block * canvas.block
        self.exact = min(self.exact, finished)  # A policy may have masked a finished block again.
        if self._whole(canvas, window):
            rows = marks(canvas, self.exact, canvas.reach(window.end))
            seen = marks(canvas, 0, self.exact)
            self.exact = finished
            return RowPlan(rows, rows, seen)
        rows = marks(canvas, _begin(window), window.end)
        about = rows.copy()
        if canvas.shift and window.start % canvas.block == 0:
            # Its prediction is in the logits of a row that must not attend to this block.
            about[window.start] = False
        seen = marks(canvas, 0, canvas.reach(window.end)) & ~rows
        return RowPlan(rows, rows, seen, about=about)

    def stale(self, canvas: Canvas) -> bool:
        return canvas.block > 1

    def _whole(self, canvas: Canvas, window: Window) -> bool:
        """Return whether the forward pass computes the whole block of the model."""
        start, end = _begin(window), canvas.reach(window.end)
        begin = start // canvas.block * canvas.block
        alone = start == begin and window.end == end
        stale = start == begin and canvas.shift and canvas.stored[start] != canvas.tokens[start]
        several = end != canvas.reach(start + 1)
        return self.due(window) or bool(canvas.masked[start] or alone or stale or several)


def _begin(window: Window) -> int:
    """Return the first position of the sub-block."""
    return window.start if window.begin is None else window.begin
