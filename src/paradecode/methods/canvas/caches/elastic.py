"""A few rows through all layers; where attention has drifted, all rows through those above."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.request import Forward, Overwrite, Reply
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, first_masks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.tracked import Tracked, asked_about
from paradecode.methods.canvas.view import Window
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare

EMPTY = np.empty(0, np.int32)
MOST_ATTENDING, MOST_TRACKED = 64, 128
"""Rows whose weights a forward is asked for: first masks of the window, and tokens of all layers.
There is a float32 for each layer, head and position of a row."""


@declare("cache", "elastic", guarantee="lossy", paper="Elastic-Cache", arxiv="2510.14973")
@dataclass
class ElasticCache(CacheRule):
    """Elastic-Cache (arXiv 2510.14973): each forward decides from which layer on to refresh.

    A forward computes the next ``window`` masks, the tokens that were just decided, and the decided
    tokens to which the window attended most in the last forward, ``track`` of each layer. If the
    attention of one of these has changed (the cosine between its weights before and now, a mean
    over heads, is below ``threshold``), all rows are run through the layers above, from the states
    that are known of that layer's output, and the predictions are taken from there. A threshold
    above 1 computes everything in every forward, -1 nothing again after the first.

    The weights of a token that was not computed in a forward, and is tracked from there on, are
    those of its last states with the keys as they are: a row through the attention of one layer.
    It keeps float32 [layers, N, hidden size]. The second, partial forward counts in ``rows`` by its
    layers, and not in ``forwards``. A method that runs several canvases in a forward (freedave)
    computes everything. The backend must give attention weights: ranks do not.
    """

    window: int = parameter(16, 1, 1 << 20, "masks that are computed in each forward")
    threshold: float = parameter(0.9, -1.0, 1.01, "cosine below which the layers above are run")
    track: int = parameter(1, 1, 1 << 20, "tokens of each layer that are watched for drift")
    _known = False

    def start(self, canvas: Canvas) -> None:
        if not canvas.block and not canvas.gives_attention:
            fix = "this backend gives no attention weights: use another cache, or one process"
            raise InvalidInput("cache", "elastic", fix)

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        self._canvas = canvas
        masks = np.flatnonzero(first_masks(canvas, window.start, self.window))
        self._window = masks[:MOST_ATTENDING]
        known, self._known = self._known and not self._asked and self.threshold <= 1, False
        if not known or self._tracked.tokens.max() >= canvas.end:
            self._asked = False
            return replace(everything(canvas, window), run=self._fill)
        rows = canvas.stored != canvas.tokens
        rows[masks] = rows[masks - canvas.shift] = rows[self._tracked.tokens] = True
        return RowPlan(rows, rows, ~rows, run=self._check)

    def _fill(self, forward: Forward) -> Generator[Any, Any, Reply]:
        """The forward of everything; keep what every layer puts out."""
        asked = asked_about(forward, self._window)
        reply: Reply = yield replace(asked, hidden=tuple(range(self._canvas.layers)))
        self._outputs = _stacked(reply)
        self._tracked = Tracked.of(reply, asked, self._canvas.end)
        yield from self._go_on()
        return reply

    def _check(self, forward: Forward) -> Generator[Any, Any, Reply]:
        """The forward of a few rows, and of all rows through the layers above a drift."""
        assert forward.positions is not None
        assert forward.logits is not None
        canvas, before = self._canvas, self._tracked
        about = np.union1d(self._window, before.tokens)
        asked = asked_about(forward, about)
        reply: Reply = yield replace(asked, hidden=tuple(range(canvas.layers)))
        self._outputs = self._outputs[:, : canvas.end]
        self._outputs[:, forward.positions] = _stacked(reply)
        self._tracked = now = Tracked.of(reply, asked, canvas.end)
        drifted = before.likeness(now) < self.threshold
        if drifted[:-1].any():
            layer = int(drifted.argmax())
            above = tuple(range(layer + 1, canvas.layers))
            everywhere = np.arange(canvas.end, dtype=np.int32)
            again = replace(
                forward,
                tokens=canvas.tokens,
                store=Overwrite(everywhere),
                positions=everywhere,
                visible=EMPTY,
                logits=forward.positions[forward.logits],
                layers=above,
                hidden=above,
                resume=self._outputs[layer],
            )
            asked = asked_about(again, about)
            reply = yield asked
            self._outputs[layer + 1 :] = _stacked(reply)
            now.shares[layer + 1 :] = Tracked.of(reply, asked, canvas.end).shares
        yield from self._go_on()
        return reply

    def _go_on(self) -> Generator[Any, Any, None]:
        """Choose what is tracked from here on."""
        most = min(self.track, max(1, MOST_TRACKED // self._canvas.layers))
        self._tracked = yield from self._tracked.chosen(
            self._canvas, self._window, most, self._outputs
        )
        self._known = True


def _stacked(reply: Reply) -> NDArray[np.float32]:
    """float32 [layers, rows, hidden size]."""
    return np.stack([reply.hidden[layer] for layer in sorted(reply.hidden)])
