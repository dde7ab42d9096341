"""Elastic-Cache: recomputes all rows above the first layer whose attention has changed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, Forward, Overwrite, Reply, Store
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, first_masks
from paradecode.methods.canvas.canvas import Canvas, Scores, Window
from paradecode.methods.canvas.feasible import Positions
from paradecode.methods.parts import declare, parameter

Shares = NDArray[np.float32]
"""Float32 [..., heads, N]: the attention weights of a row, which add up to 1 over N positions."""


def asked_about(forward: Forward, positions: Positions) -> Forward:
    """Return a copy of the forward pass that also returns the attention weights of ``positions``.

    ``positions`` are in ascending order, and the forward computes all of them.
    """
    assert forward.positions is not None
    rows = np.searchsorted(forward.positions, positions)
    return replace(forward, attention=rows.astype(np.int32))


def shares_of(reply: Reply, forward: Forward, layer: int, end: int) -> Shares:
    """Return the attention weights [A, heads, N] of one layer from a reply to ``forward``.

    A is the number of rows whose weights the forward pass asked for. N is ``end``; positions to
    which the rows do not attend get 0.
    """
    assert forward.positions is not None
    assert forward.visible is not None
    known = reply.attention[layer]
    shares = np.zeros((*known.shape[:-1], end), np.float32)
    shares[..., np.concatenate([forward.visible, forward.positions])] = known
    return shares


@dataclass
class Tracked:
    """The tracked tokens of each layer, and their attention weights.

    Attributes:
        tokens: int64 [layers, T], positions of the tracked tokens.
        shares: [layers, T, heads, N], attention weights of each tracked token.
        received: float64 [layers, N], the sum of the attention weights that the masks of the window
            give to each position.
    """

    tokens: NDArray[np.int64]
    shares: Shares
    received: Scores

    @classmethod
    def of(
        cls, reply: Reply, forward: Forward, window: Positions, tokens: NDArray[np.int64], end: int
    ) -> Tracked:
        """Build the tracked weights from a reply with the weights of ``window`` and ``tokens``.

        ``forward`` asked for the weights of all these positions. Only the needed part of each
        layer's weights is stored.
        """
        assert forward.positions is not None
        assert forward.attention is not None
        about = forward.positions[forward.attention]
        masks = np.searchsorted(about, window)
        shares, received = [], []
        for layer, own in zip(sorted(reply.attention), tokens, strict=True):
            known = shares_of(reply, forward, layer, end)
            received.append(known[masks].sum(axis=(0, 1), dtype=np.float64))
            shares.append(known[np.searchsorted(about, own)])
        return cls(tokens, np.stack(shares), np.stack(received))

    def likeness(self, now: Tracked) -> Scores:
        """Return float64 [layers]: the smallest similarity of any tracked token's weights.

        The similarity of a token is the cosine between its attention weights in ``self`` and in
        ``now``, as a mean over heads. ``now`` tracks the same tokens.
        """
        new = now.shares.astype(np.float64)
        old = self.shares[..., : new.shape[-1]].astype(np.float64)
        scale = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
        cosines = (old * new).sum(axis=-1) / np.maximum(scale, 1e-30)
        least: Scores = cosines.mean(axis=-1).min(axis=-1)
        return least

    def chosen(
        self, canvas: Canvas, count: int, outputs: NDArray[np.float32]
    ) -> Generator[Any, Any, Tracked]:
        """Choose the ``count`` decided tokens of each layer to which the window attends most.

        Return the chosen tokens with their attention weights.

        Args:
            outputs: float32 [layers, N, hidden size], the most recent output of every layer.
        """
        received = np.where(canvas.masked, -1.0, self.received)
        best = np.argsort(-received, axis=1, kind="stable")
        tokens = best[:, : min(count, int((~canvas.masked).sum()))]
        shares = np.empty((*tokens.shape, canvas.heads, canvas.end), np.float32)
        at, new, old = np.nonzero(tokens[:, :, None] == self.tokens[:, None])
        shares[at, new] = self.shares[at, old]
        unknown = np.ones(tokens.shape, bool)
        unknown[at, new] = False
        layers = np.flatnonzero(unknown.any(axis=1)).tolist()
        asked = [
            _attention_of(canvas, layer, np.unique(tokens[layer, unknown[layer]]), outputs)
            for layer in layers
        ]
        replies = (yield asked) if asked else []
        for layer, forward, reply in zip(layers, asked, replies, strict=True):
            missing = unknown[layer]
            rows = np.searchsorted(np.unique(tokens[layer, missing]), tokens[layer, missing])
            shares[layer, missing] = shares_of(reply, forward, layer, canvas.end)[rows]
        return Tracked(tokens, shares, self.received)


def _attention_of(
    canvas: Canvas, layer: int, positions: Positions, outputs: NDArray[np.float32]
) -> Forward:
    """Return a forward pass that computes the attention weights of ``positions`` in one layer.

    The positions resume from their most recent hidden states and attend to the cached keys.
    """
    at = positions.astype(np.int32)
    return Forward(
        canvas.tokens[at],
        attend=Attend.FULL,
        store=Store.NONE,
        positions=at,
        visible=np.setdiff1d(np.arange(canvas.end, dtype=np.int32), at),
        logits=np.empty(0, np.int32),
        layers=(Half(layer, "attention"),),
        resume=outputs[layer - 1, at] if layer else None,
        attention=np.arange(len(at), dtype=np.int32),
    )


EMPTY = np.empty(0, np.int32)
BUDGET = 1 << 28
"""The most bytes of attention weights in one forward pass, as float32 [layers, rows, heads, N]."""


@declare("cache", "elastic", guarantee="lossy", paper="Elastic-Cache", arxiv="2510.14973")
class ElasticCache(CacheRule):
    """Elastic-Cache (arXiv 2510.14973): each forward pass decides from which layer on to refresh.

    A forward computes the next ``window`` masks, the tokens that were just decided, and the tracked
    tokens. The tracked tokens of a layer are the ``track`` decided tokens that got the most
    attention from the window in the last forward. For each tracked token, the cache computes the
    cosine between its previous and its present attention weights, as a mean over heads. If this
    cosine is below ``threshold`` in a layer, all rows are run through the layers above it. They
    start from their stored outputs of that layer, and the predictions are taken from this second
    run. A threshold above 1 computes every row in every forward; with -1 nothing is computed again
    after the first forward.

    A tracked token may be one that the last forward did not compute. Its weights are then computed
    from its last hidden states and the present keys, by running one row through the attention of
    one layer. The attention weights of a forward take at most 256 MiB. If they would take more,
    fewer masks of the window and fewer tokens of each layer are tracked. The cache is refused if
    one mask and one token of each layer take more, as in LLaDA-8B with more than 1985 positions.

    The cache stores float32 [layers, N, hidden size]. The second run and the runs of one layer's
    attention count in ``rows`` in proportion to their layers, and not in ``forwards``. A method
    that runs several canvases in a forward (freedave) computes every row. The backend must return
    attention weights; a model that is split over several processes cannot.
    """

    window: int = parameter(
        16, 1, 1 << 20, "masks of each forward; 256 MiB bound attention weights"
    )
    threshold: float = parameter(0.9, -1.0, 1.01, "cosine below which all rows run above the layer")
    track: int = parameter(1, 1, 1 << 20, "tokens tracked in each layer; 256 MiB bound weights")
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
        """Run the forward pass of all rows, and store the output of every layer."""
        layers = self._canvas.layers
        asked = asked_about(forward, self._window)
        reply: Reply = yield replace(asked, hidden=tuple(range(layers)))
        self._outputs = _stacked(reply)
        nothing = np.empty((layers, 0), np.int64)
        self._tracked = Tracked.of(reply, asked, self._window, nothing, self._canvas.end)
        yield from self._go_on()
        return reply

    def _check(self, forward: Forward) -> Generator[Any, Any, Reply]:
        """Run the planned rows, then all rows above the first layer whose attention has changed."""
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
        """Choose the tokens that are tracked from the next forward pass on."""
        chosen = self._tracked.chosen(self._canvas, self._each, self._outputs)
        self._tracked = yield from chosen
        self._known = True


def _stacked(reply: Reply) -> NDArray[np.float32]:
    """Return a reply's hidden states as float32 [layers, rows, hidden size], in order of layers."""
    return np.stack([reply.hidden[layer] for layer in sorted(reply.hidden)])
