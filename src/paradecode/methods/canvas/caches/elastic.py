"""A few rows run through all layers; above a layer whose attention has changed, all rows do."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Overwrite, Reply
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, first_masks
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.tracked import Tracked, asked_about
from paradecode.methods.canvas.view import Window
from paradecode.methods.parts import declare, parameter

EMPTY = np.empty(0, np.int32)
BUDGET = 1 << 28
"""The most bytes of attention weights that one forward returns: float32 [layers, rows, heads,
N]."""


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
    Attention weights of a forward take at most 256 MiB. Where they would take more, fewer masks of
    the window and fewer tokens of each layer are asked about; where one mask and one token of each
    layer take more, the cache is refused: LLaDA-8B on more than 1985 positions.

    It keeps float32 [layers, N, hidden size]. The second, partial forward and the rows through the
    attention of one layer count in ``rows`` by their layers, and not in ``forwards``. A method that
    runs several canvases in a forward (freedave) computes everything. The backend must give
    attention weights: ranks do not.
    """

    window: int = parameter(
        16, 1, 1 << 20, "masks that each forward computes; 256 MiB bound the weights"
    )
    threshold: float = parameter(0.9, -1.0, 1.01, "cosine below which the layers above are run")
    track: int = parameter(1, 1, 1 << 20, "tokens watched in each layer; 256 MiB bound the weights")
    _known = False

    def start(self, canvas: Canvas) -> None:
        if canvas.block or self.threshold > 1:
            return
        if not canvas.gives_attention:
            fix = "this backend gives no attention weights: use another cache, or one process"
            raise InvalidInput("cache", "elastic", fix)
        row = 4 * canvas.layers * canvas.heads * canvas.end
        rows = BUDGET // row
        if rows <= canvas.layers:
            most = BUDGET * canvas.end // (row * (canvas.layers + 1))
            fix = f"its attention weights need at most {most} positions, prompt included: "
            raise InvalidInput("cache", "elastic", f"{fix}use less, or another cache")
        self._each = min(self.track, max(1, rows // 2 // canvas.layers))
        self._masks = rows - self._each * canvas.layers

    def sparse(self, canvas: Canvas, window: Window) -> RowPlan:
        if self.threshold > 1:
            return everything(canvas, window)
        self._canvas = canvas
        masks = np.flatnonzero(first_masks(canvas, window.start, self.window))
        self._window = masks[: self._masks]
        known, self._known = self._known and not self._asked, False
        if not known or self._tracked.tokens.max() >= canvas.end:
            self._asked = False
            return replace(everything(canvas, window), run=self._fill)
        rows = canvas.stored != canvas.tokens
        rows[masks] = rows[masks - canvas.shift] = rows[self._tracked.tokens] = True
        return RowPlan(rows, rows, ~rows, run=self._check)

    def _fill(self, forward: Forward) -> Generator[Any, Any, Reply]:
        """Run the forward of all rows, and keep the output of every layer."""
        layers = self._canvas.layers
        asked = asked_about(forward, self._window)
        reply: Reply = yield replace(asked, hidden=tuple(range(layers)))
        self._outputs = _stacked(reply)
        nothing = np.empty((layers, 0), np.int64)
        self._tracked = Tracked.of(reply, asked, self._window, nothing, self._canvas.end)
        yield from self._go_on()
        return reply

    def _check(self, forward: Forward) -> Generator[Any, Any, Reply]:
        """Run the forward of a few rows; above a layer whose attention has changed, run all
        rows."""
        assert forward.positions is not None
        assert forward.logits is not None
        canvas, before = self._canvas, self._tracked
        about = np.union1d(self._window, before.tokens)
        asked = asked_about(forward, about)
        reply: Reply = yield replace(asked, hidden=tuple(range(canvas.layers)))
        self._outputs = self._outputs[:, : canvas.end]
        self._outputs[:, forward.positions] = _stacked(reply)
        self._tracked = now = Tracked.of(reply, asked, self._window, before.tokens, canvas.end)
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
            tokens = before.tokens[layer + 1 :]
            anew = Tracked.of(reply, asked, self._window, tokens, canvas.end)
            now.shares[layer + 1 :], now.received[layer + 1 :] = anew.shares, anew.received
        yield from self._go_on()
        return reply

    def _go_on(self) -> Generator[Any, Any, None]:
        """Choose the tokens that are tracked from here on."""
        chosen = self._tracked.chosen(self._canvas, self._each, self._outputs)
        self._tracked = yield from chosen
        self._known = True


def _stacked(reply: Reply) -> NDArray[np.float32]:
    """float32 [layers, rows, hidden size]: the hidden states of a reply, in order of layers."""
    return np.stack([reply.hidden[layer] for layer in sorted(reply.hidden)])
