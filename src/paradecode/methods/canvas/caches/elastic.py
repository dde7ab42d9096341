"""A few rows through all layers; where they have drifted, all rows through the layers above."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Forward, Overwrite, Reply
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, first_masks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Scores, Window
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare

EMPTY = np.empty(0, np.int32)


@declare("cache", "elastic", guarantee="lossy", paper="Elastic-Cache", arxiv="2510.14973")
@dataclass
class ElasticCache(CacheRule):
    """Elastic-Cache (arXiv 2510.14973): each forward decides from which layer on to refresh.

    A forward computes the next ``window`` masks, the tokens that were just decided, and ``track``
    decided ones. If what a layer adds to one of the latter has another direction than it had (a
    cosine below ``threshold``), all rows are run through the layers above it, from the states that
    are known of that layer's output, and the predictions are taken from there. A threshold above 1
    computes everything in every forward, -1 nothing again after the first.

    The paper tracks the token that the window attends to most, and compares its attention weights.
    The engine gives no attention weights, so this compares the layer's outputs, and tracks the
    decided tokens that are nearest to the first mask. It keeps float32 [layers, N, hidden size].
    The second, partial forward counts in ``rows`` by its layers, and not in ``forwards``. A method
    that runs several canvases in a forward (freedave) computes everything.
    """

    window: int = parameter(16, 1, 1 << 20, "masks that are computed in each forward")
    threshold: float = parameter(0.9, -1.0, 1.01, "cosine below which the layers above are run")
    track: int = parameter(1, 1, 1 << 20, "decided tokens that are watched for drift")
    _known = False

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        self._canvas = canvas
        if self._asked or not self._known or self.threshold > 1:
            self._known = self._asked = False
            whole = everything(canvas, window)
            return replace(whole, run=self._fill)
        self._known = False
        settled = np.flatnonzero(canvas.final)
        nearest = np.argsort(
            abs(settled - canvas.edge), kind="stable"
        )  # The left one of two first.
        self._tracked = settled[nearest[: self.track]]
        rows = first_masks(canvas, window.start, self.window) | (canvas.stored != canvas.tokens)
        rows[self._tracked] = True
        return RowPlan(rows, rows, ~rows, run=self._check)

    def _fill(self, forward: Forward) -> Generator[Forward, Any, Reply]:
        """The forward of everything; keep what every layer puts out."""
        reply: Reply = yield replace(forward, hidden=tuple(range(self._canvas.layers)))
        self._outputs = _stacked(reply)
        self._known = True
        return reply

    def _check(self, forward: Forward) -> Generator[Forward, Any, Reply]:
        """The forward of a few rows, and of all rows through the layers above a drift."""
        assert forward.positions is not None
        assert forward.logits is not None
        reply: Reply = yield replace(forward, hidden=tuple(range(self._canvas.layers)))
        self._outputs = self._outputs[:, : self._canvas.end]
        before = self._outputs[:, self._tracked]
        self._outputs[:, forward.positions] = _stacked(reply)
        drifted = _cosine(before, self._outputs[:, self._tracked]).min(axis=1) < self.threshold
        self._known = True
        if not drifted[:-1].any():
            return reply
        layer = int(drifted.argmax())
        above = tuple(range(layer + 1, self._canvas.layers))
        everywhere = np.arange(self._canvas.end, dtype=np.int32)
        reply = yield replace(
            forward,
            tokens=self._canvas.tokens,
            store=Overwrite(everywhere),
            positions=everywhere,
            visible=EMPTY,
            logits=forward.positions[forward.logits],
            layers=above,
            hidden=above,
            resume=self._outputs[layer],
        )
        self._outputs[layer + 1 :] = _stacked(reply)
        return reply


def _stacked(reply: Reply) -> NDArray[np.float32]:
    """float32 [layers, rows, hidden size]."""
    return np.stack([reply.hidden[layer] for layer in sorted(reply.hidden)])


def _cosine(before: NDArray[np.float32], after: NDArray[np.float32]) -> Scores:
    """float64 [layers, rows]: between what each layer added to a row, and adds now."""
    old, new = (
        np.diff(states.astype(np.float64), axis=0, prepend=0.0) for states in (before, after)
    )
    scale = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
    return (old * new).sum(axis=-1) / np.maximum(scale, 1e-30)
