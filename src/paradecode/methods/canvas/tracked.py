"""The decided tokens to which masks attend most, and the attention weights of these tokens."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, Forward, Reply, Store
from paradecode.core.layers import Half
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Positions
from paradecode.methods.canvas.view import Scores

Shares = NDArray[np.float32]
"""[..., heads, N]: the share of a row's attention that each position gets."""


def asked_about(forward: Forward, positions: Positions) -> Forward:
    """A copy of the forward that also returns the attention weights of these positions,
    ascending."""
    assert forward.positions is not None
    rows = np.searchsorted(forward.positions, positions)
    return replace(forward, attention=rows.astype(np.int32))


def shares_of(reply: Reply, forward: Forward, layer: int, end: int) -> Shares:
    """The attention weights [A, heads, N] of one layer that a forward asked for."""
    assert forward.positions is not None
    assert forward.visible is not None
    known = reply.attention[layer]
    shares = np.zeros((*known.shape[:-1], end), np.float32)
    shares[..., np.concatenate([forward.visible, forward.positions])] = known
    return shares


@dataclass
class Tracked:
    """Tokens of each layer, and their attention weights.

    Attributes:
        tokens: int64 [layers, T], positions of the tokens.
        shares: [layers, T, heads, N], attention weights of each token.
        received: float64 [layers, N], attention that each position got from the window's masks.
    """

    tokens: NDArray[np.int64]
    shares: Shares
    received: Scores

    @classmethod
    def of(
        cls,
        reply: Reply,
        forward: Forward,
        window: Positions,
        tokens: NDArray[np.int64],
        end: int,
    ) -> Tracked:
        """The weights that a forward returned for ``window`` and ``tokens``, all of which it was
        asked for.

        Only the part that is needed of each layer's reply is kept.
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
        """float64 [layers]: the cosine between a token's weights before and now, a mean over
        heads, for the token with the smallest one. ``now`` has the same tokens."""
        new = now.shares.astype(np.float64)
        old = self.shares[..., : new.shape[-1]].astype(np.float64)
        scale = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
        cosines = (old * new).sum(axis=-1) / np.maximum(scale, 1e-30)
        least: Scores = cosines.mean(axis=-1).min(axis=-1)
        return least

    def chosen(
        self, canvas: Canvas, count: int, outputs: NDArray[np.float32]
    ) -> Generator[Any, Any, Tracked]:
        """The decided tokens to which the window attends most, ``count`` in each layer.

        Args:
            outputs: float32 [layers, N, hidden size], the last output of every layer.
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
    """The forward that gives the tokens' attention weights in a layer now: their last states
    attend to the cached keys."""
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
