"""Only the next few masks are computed, and what is far ahead is not even seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.caches.base import CacheRule, Marks, RowPlan, first_masks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare, parameter


@declare("cache", "window", guarantee="lossy", paper="Window-Diffusion", arxiv="2601.20332")
@dataclass
class WindowCache(CacheRule):
    """Window-Diffusion (arXiv 2601.20332): far masks hardly matter, so they are left out.

    A phase begins with a forward over its *context*: what is decided, and the next ``buffer``
    masks. The following forwards see that context and nothing else. They compute the next
    ``active`` masks and the tokens that were decided in them, until the phase ends after
    ``refresh`` forwards, or when the context runs out of masks. Tokens that the first forward of
    the phase decided are computed once more, in the second.

    The paper has no blocks: use it with ``blocks=full``, or with ``blocks=sliding``, which keeps
    the first forward of a phase from deciding positions that are far ahead. The released LLaDA
    code leaves nothing out in a phase's first forward; this follows the paper, as its Dream code
    does.
    """

    active: int = parameter(16, 1, 1 << 20, "masks that are computed in each forward")
    buffer: int = parameter(64, 1, 1 << 20, "masks of the context; the paper has 128 for Dream")
    refresh: int = parameter(32, 1, 4096, "forwards of a phase")

    def __post_init__(self) -> None:
        if self.buffer < self.active:
            raise InvalidInput(
                "cache=window.buffer", self.buffer, f"give at least active, {self.active}"
            )

    def start(self, canvas: Canvas) -> None:
        self._context: Marks = np.zeros(canvas.end, bool)
        self._open: Marks | None = None

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        self._context = self._context[: canvas.end]
        active = first_masks(canvas, window.start, self.active)
        self._asked |= bool((active & ~self._context).any())
        if self.due(window, self.refresh):
            return self._begin(canvas, window)
        if self._open is None:
            self._open = canvas.masked.copy()
        recent = (self._open[: canvas.end] & ~canvas.masked) | (canvas.stored != canvas.tokens)
        rows = active | (recent & self._context)
        return RowPlan(rows, rows, self._context & ~rows)

    def _begin(self, canvas: Canvas, window: Window) -> RowPlan:
        ahead = first_masks(canvas, window.start, self.buffer)
        self._context, self._open = ~canvas.masked | ahead, None
        nothing = np.zeros(canvas.end, bool)
        whole = bool(self._context.all())
        return RowPlan(self._context, self._context, nothing, refresh=whole)
