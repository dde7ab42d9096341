"""No cache, and caches that keep what is outside of the block while the block is decoded."""

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
    """Every forward computes every row."""

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        return everything(canvas, window, store=False)

    def stale(self, canvas: Canvas) -> bool:
        return False


@declare("cache", "prefix", guarantee="lossy", paper="Fast-dLLM", arxiv="2505.22618")
class PrefixCache(CacheRule):
    """Fast-dLLM's prefix cache (arXiv 2505.22618); exact for models with blocks of their own.

    With full attention the prefix also depends on what is decided later, so that it is stale from
    the second forward of a block on. The block and the masks after it are always computed.
    """

    refresh: int = parameter(0, 0, 4096, "also compute all every n forwards; 0: a block's first")
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

    For models with blocks of their own nothing after the block is seen: it is the prefix cache.
    """

    refresh: int = parameter(0, 0, 4096, "also compute all every n forwards; 0: a block's first")

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

    A forward computes from where the *last* window began to the furthest end of any so far, and
    ``delay`` positions more on either side, but none of the prompt, so that no token leaves the
    window with the keys and values of a mask. All is computed anew whenever ``refresh`` tokens were
    decided. (The paper's prefix variant, which computes all behind the window, is left out.)
    """

    refresh: int = parameter(32, 1, 1 << 20, "tokens decided between two forwards of everything")
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


# Inside a block of the model only a sub-block is computed; finished blocks are exact.


@declare("cache", "two_level", guarantee="lossy", paper="Fast-dLLM v2", arxiv="2509.26328")
class TwoLevelCache(CacheRule):
    """Fast-dLLM v2's caches (arXiv 2509.26328): of finished blocks, and of the rest of this one.

    For models with blocks of their own. The sub-block is the window, and what of the prompt shares
    it: ``block_length=8`` and ``blocks=lead`` (or ``fixed``) for a model with blocks of 32. Its
    first forward computes the whole block of the model, and so does every one until the first
    position of the sub-block is decided; the others compute the sub-block against the block's stale
    keys and values.

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
            # What is proposed for it is in the logits of a row that must not see this block.
            about[window.start] = False
        seen = marks(canvas, 0, canvas.reach(window.end)) & ~rows
        return RowPlan(rows, rows, seen, about=about)

    def stale(self, canvas: Canvas) -> bool:
        return canvas.block > 1

    def _whole(self, canvas: Canvas, window: Window) -> bool:
        """Whether the forward computes the whole block of the model."""
        start, end = _begin(window), canvas.reach(window.end)
        begin = start // canvas.block * canvas.block
        alone = start == begin and window.end == end
        stale = start == begin and canvas.shift and canvas.stored[start] != canvas.tokens[start]
        several = end != canvas.reach(start + 1)
        return self.due(window) or bool(canvas.masked[start] or alone or stale or several)


def _begin(window: Window) -> int:
    """The first position of the sub-block."""
    return window.start if window.begin is None else window.begin
