"""Cache rules that compute a few chosen positions of the canvas in each forward pass."""

from __future__ import annotations

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.core.noise import Purpose, key, uniform
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, first_masks, some
from paradecode.methods.canvas.canvas import Canvas, Decision, Marks, Scores, View, Window
from paradecode.methods.parts import choice, declare, parameter


@declare("cache", "dkv", guarantee="lossy", paper="dKV-Cache", arxiv="2505.15781")
class DelayedKV(CacheRule):
    """dKV-Cache-Decode (arXiv 2505.15781): keys and values are cached a forward after the decision.

    The keys and values of a position change most when its mask is decided. They are therefore
    stored by the first forward pass that reads the decided token, and reused until the next forward
    of every row. Each forward computes all masks of the canvas. The first two forwards of a block
    compute every row.

    In models with shifted logits, the row to the left of each mask of the window is computed as
    well, even if it is cached (the paper's ``un_right``, restricted to the window).
    """

    refresh: int = parameter(8, 1, 4096, "compute all rows every n forwards; paper: 16 for Dream")
    _again = False

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        begins = window.block != self._block
        if self.due(window, self.refresh) or self._again:
            self._again = begins
            return everything(canvas, window, store=~canvas.masked)
        return RowPlan(~canvas.final, ~canvas.final & ~canvas.masked, canvas.final)


@declare("cache", "dkv_greedy", guarantee="lossy", paper="dKV-Cache", arxiv="2505.15781")
class GreedyDelayedKV(CacheRule):
    """dKV-Cache-Greedy (arXiv 2505.15781): a forward pass computes a few rows, whatever the length.

    A forward computes the tokens that were just decided, the masks that are expected to be decided
    next, and the ``neighbours`` masks nearest to each expected mask. All other positions, masks
    included, reuse the keys and values of earlier forwards. The number of expected masks is the
    number that the last forward decided.

    The next masks are known for certain only in a random order that is drawn beforehand. The paper
    uses this order: ``order=random`` with the policy ``static(score=random)``. With other policies
    the cache expects the masks of the window that had the highest confidence when they were last
    computed.
    """

    refresh: int = parameter(2, 1, 4096, "compute all rows every n forwards")
    neighbours: int = parameter(4, 0, 4096, "masks that are computed around each expected one")
    order: str = choice("confidence", ("confidence", "random"), "which masks are expected next")

    def start(self, canvas: Canvas) -> None:
        self._scores: Scores = np.full(canvas.end, -np.inf)
        self._count = 1

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.due(window, self.refresh):
            return everything(canvas, window)
        rows = (canvas.stored != canvas.tokens) | self._next(canvas, window)
        return some(rows)

    def after(self, view: View, decision: Decision) -> None:
        super().after(view, decision)
        self._count = max(1, len(decision.commit))
        if self.order == "random":
            everywhere = np.arange(len(self._scores))
            self._scores = uniform(key(view.seed, 0, Purpose.ORDER), everywhere)
        else:
            self._scores[view.positions] = view.confidence

    def _next(self, canvas: Canvas, window: Window) -> Marks:
        """Return the masks that are expected to be decided next, and the masks around them."""
        masked = np.flatnonzero(canvas.masked)
        inside = np.flatnonzero((masked >= window.start) & (masked < window.end))
        order = np.argsort(-self._scores[masked[inside]], kind="stable")
        around = np.arange(len(masked))
        chosen = np.zeros(canvas.end, bool)
        for center in inside[order[: self._count]].tolist():
            nearest = np.argsort(abs(around - center), kind="stable")  # The left one of two first.
            chosen[masked[nearest[: self.neighbours + 1]]] = True
        return chosen


# Between two forwards of everything, only the positions that are decided next are computed.


@declare("cache", "recap", guarantee="lossy", paper="ReCAP", arxiv="2505.19089")
class Recap(CacheRule):
    """ReCAP (arXiv 2505.19089): a full forward chooses a group, and local forwards fill the group.

    The group has the positions that the full forward pass decided, and the masks of the window with
    the next highest confidence. ``local`` local forwards follow. Each computes only the group's
    positions, and reads the keys and values that the full forward stored for all other positions. A
    token that was just decided in the group is therefore taken into account, and nothing outside of
    the group changes.

    The paper decodes images in an order that the full forward fixes. Here the policy ranks the
    group's masks again after each local forward. If all masks of a group are decided before its
    last local forward, the next full forward follows at once.
    """

    local: int = parameter(1, 0, 4096, "local forwards after each full forward; 0: no cache")
    group: int = parameter(
        0, 0, 1 << 20, "masks left to the local forwards; 0: as many as the full one decided, each"
    )
    warmup: int = parameter(0, 0, 1 << 20, "number of full forwards before the first group")

    def start(self, canvas: Canvas) -> None:
        self._group = np.zeros(canvas.end, bool)

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        group = self._group[: canvas.end] & canvas.masked
        filled = not group[window.start : window.end].any()
        self._asked |= filled or canvas.steps <= self.warmup
        if self.due(window, self.local + 1):
            return everything(canvas, window)
        rows = group | (canvas.stored != canvas.tokens)
        return some(rows, store=False)

    def after(self, view: View, decision: Decision) -> None:
        super().after(view, decision)
        if view.refresh:
            left = view.eligible & ~np.isin(view.positions, decision.commit)
            order = np.argsort(np.where(left, -view.confidence, np.inf), kind="stable")
            count = self.group or self.local * max(1, len(decision.commit))
            self._group[:] = False
            self._group[view.positions[order[: min(count, int(left.sum()))]]] = True


# Only the next few masks are computed, and no row attends to masks that are far ahead.


@declare("cache", "window", guarantee="lossy", paper="Window-Diffusion", arxiv="2601.20332")
class WindowCache(CacheRule):
    """Window-Diffusion (arXiv 2601.20332): masks that are far away are not computed.

    A phase begins with a forward pass over its *context*: the decided tokens and the next
    ``buffer`` masks. The following forwards attend to that context only. They compute the next
    ``active`` masks, and the tokens that were decided in this phase. The phase ends after
    ``refresh`` forwards, or when the context has no masks left. Tokens that the first forward of
    the phase decided are computed once more, in the second.

    The paper has no blocks. Use ``blocks=full``, or ``blocks=sliding``, which keeps the first
    forward of a phase from deciding positions that are far ahead. The first forward of a phase
    leaves out far masks as in the paper and in the released code for Dream; the released code for
    LLaDA computes every row there.
    """

    active: int = parameter(16, 1, 1 << 20, "number of masks that are computed in each forward")
    buffer: int = parameter(64, 1, 1 << 20, "masks in the context; the paper has 128 for Dream")
    refresh: int = parameter(32, 1, 4096, "number of forwards of a phase")

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
