"""Base class of cache rules, which choose the rows that a forward computes, stores and reads.

A row is one canvas position in a forward pass: its token goes in, and logits come out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from paradecode.core.decoder import Forward, Reply
from paradecode.methods.canvas.canvas import Canvas, Decision, Marks, View, Window


def once(forward: Forward) -> Generator[Forward, Any, Reply]:
    """Run a forward pass unchanged, and return its reply."""
    reply: Reply = yield forward
    return reply


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The plan of one forward pass over a canvas of N positions.

    Attributes:
        rows: bool [N], positions to compute. They attend to one another as the model's attention
            allows. Only masked positions among them can be decided in this step. In a model with
            shifted logits, the loop adds the row to the left of each position whose prediction is
            wanted.
        store: bool [N], the positions of ``rows`` whose keys and values replace the cached ones.
        see: bool [N], positions whose cached keys and values the rows attend to as well. The loop
            leaves out positions that are computed.
        refresh: True if every row is computed, so that the old cache is not used.
        about: bool [N], positions that may be predicted; by default the positions of ``rows``.
        run: a generator that runs the forward and returns its reply. The elastic cache uses it to
            run more of the model. Loops that run several canvases in one forward do not call it.
    """

    rows: Marks
    store: Marks
    see: Marks
    refresh: bool = False
    about: Marks | None = None
    run: Callable[[Forward], Generator[Forward, Any, Reply]] = once


class CacheRule:
    """Base class of cache rules, which plan the forward passes of a request.

    A cache rule is a dataclass, and each request has its own object. Fields declared with
    ``parameter`` or ``choice`` are settings: ``cache=prefix(refresh=8)``. ``canvas.stored`` has the
    token from which the cached keys and values of each position were computed.

    Attributes:
        clashes: see :class:`Policy`.
    """

    clashes: Mapping[str, str] = MappingProxyType({})
    _block: int | None = None
    _age: int = 0
    _asked = False

    def start(self, canvas: Canvas) -> None:
        """Prepare the rule before the first forward pass."""

    def plan(self, canvas: Canvas, window: Window) -> RowPlan:
        """Return the plan of the next forward pass.

        A block-causal model always gets the exact prefix cache.
        """
        return exact_prefix(canvas, window) if canvas.block else self.sparse(canvas, window)

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        """Return the plan of the next forward pass for a model with full attention."""
        raise NotImplementedError

    def stale(self, canvas: Canvas) -> bool:
        """Return whether rows may attend to keys and values that belong to an older canvas."""
        return canvas.block == 0

    def after(self, view: View, decision: Decision) -> None:
        """Update the rule after a decision was applied to the canvas."""
        self._asked = decision.refresh

    def due(self, window: Window, every: int = 0) -> bool:
        """Return whether the next forward pass must compute every row again.

        It must at the start of a block, when a policy asked for it, and after every ``every``
        forwards (0: never for this reason). Call this exactly once for each plan, because each call
        counts a forward.
        """
        fresh = window.block != self._block or self._asked or 0 < every <= self._age
        self._block, self._age = window.block, 1 if fresh else self._age + 1
        return fresh


def marks(canvas: Canvas, start: int, end: int) -> Marks:
    """Return bool [N] that is True from position ``start`` to ``end`` (exclusive)."""
    inside = np.zeros(canvas.end, bool)
    inside[start:end] = True
    return inside


def first_masks(canvas: Canvas, start: int, count: int) -> Marks:
    """Return bool [N] that is True for the first ``count`` masked positions from ``start`` on."""
    masked = canvas.masked & (np.arange(canvas.end) >= start)
    return masked & (np.cumsum(masked) <= count)


def everything(canvas: Canvas, window: Window, store: Marks | bool = True) -> RowPlan:
    """Return a plan that computes all rows on which the window depends, without the cache.

    Args:
        store: the rows whose keys and values are stored.
    """
    rows = marks(canvas, 0, canvas.reach(window.end))
    return RowPlan(rows, rows & store, rows & False, refresh=True)


def some(rows: Marks, store: bool = True) -> RowPlan:
    """Return a plan that computes ``rows``, which attend to all other positions in the cache."""
    return RowPlan(rows, rows & store, ~rows)


def exact_prefix(canvas: Canvas, window: Window) -> RowPlan:
    """Return a plan that caches the finished blocks of a block-causal model; this cache is exact.

    The first forward pass of a block also computes the previous block from its final tokens, and
    stores the keys and values of that previous block.
    """
    unsure = int(np.argmin(canvas.final))  # There is a masked position, which is never final.
    first = unsure // canvas.block * canvas.block
    finished = canvas.edge // canvas.block * canvas.block
    rows = marks(canvas, first, canvas.reach(window.end))
    return RowPlan(rows, rows & marks(canvas, 0, finished), marks(canvas, 0, first))
