"""The decided tokens that masks attend to most, and how these attend themselves."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.layers import Half
from paradecode.core.request import Attend, Forward, Reply, Store
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Positions
from paradecode.methods.canvas.view import Scores

Shares = NDArray[np.float32]
"""[layers, rows, heads, N]: which share of a row's attention each position gets."""


def asked_about(forward: Forward, positions: Positions) -> Forward:
    """The forward, which also returns the attention weights of these positions, ascending."""
    assert forward.positions is not None
    rows = np.searchsorted(forward.positions, positions)
    return replace(forward, attention=rows.astype(np.int32))


def shares_of(reply: Reply, forward: Forward, end: int) -> Shares:
    """The weights that a forward asked for, those of layers side by side."""
    assert forward.positions is not None
    assert forward.visible is not None
    columns = np.concatenate([forward.visible, forward.positions])
    known = np.stack([reply.attention[layer] for layer in sorted(reply.attention)])
    shares = np.zeros((*known.shape[:-1], end), np.float32)
    shares[..., columns] = known
    return shares


@dataclass
class Tracked:
    """Tokens of each layer, and their attention weights.

    Attributes:
        tokens: int64 [layers, T], positions.
        shares: [layers, T, heads, N], of each of them.
    """

    tokens: NDArray[np.int64]
    shares: Shares

    @classmethod
    def of(cls, reply: Reply, forward: Forward, end: int) -> Tracked:
        """All that a forward was asked about, the same tokens in every layer."""
        assert forward.positions is not None
        assert forward.attention is not None
        shares = shares_of(reply, forward, end)
        at = forward.positions[forward.attention].astype(np.int64)
        return cls(np.tile(at, (len(shares), 1)), shares)

    def likeness(self, now: Tracked) -> Scores:
        """float64 [layers]: the cosine between the weights of a token before and now, a mean over
        heads, of the token for which it is least; ``now`` has all tokens in every layer."""
        rows = np.searchsorted(now.tokens[0], self.tokens)
        new = np.take_along_axis(now.shares, rows[:, :, None, None], 1).astype(np.float64)
        old = self.shares[..., : new.shape[-1]].astype(np.float64)
        scale = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
        cosines = (old * new).sum(axis=-1) / np.maximum(scale, 1e-30)
        least: Scores = cosines.mean(axis=-1).min(axis=-1)
        return least

    def chosen(
        self, canvas: Canvas, window: Positions, count: int, outputs: NDArray[np.float32]
    ) -> Generator[Any, Any, Tracked]:
        """The decided tokens to which ``window`` attends most: ``count`` of each layer.

        Args:
            outputs: float32 [layers, N, hidden size], the last output of every layer.
        """
        about = self.tokens[0]
        received = self.shares[:, np.searchsorted(about, window)].sum(axis=(1, 2), dtype=np.float64)
        received[:, canvas.masked] = -1.0
        best = np.argsort(-received, axis=1, kind="stable")
        tokens = best[:, : min(count, int((~canvas.masked).sum()))]
        rows = np.minimum(np.searchsorted(about, tokens), len(about) - 1)
        shares = np.take_along_axis(self.shares, rows[:, :, None, None], 1)
        unknown = about[rows] != tokens
        layers = np.flatnonzero(unknown.any(axis=1)).tolist()
        asked = [
            _attention_of(canvas, layer, np.unique(tokens[layer, unknown[layer]]), outputs)
            for layer in layers
        ]
        replies = (yield asked) if asked else []
        for layer, forward, reply in zip(layers, asked, replies, strict=True):
            missing = unknown[layer]
            at = np.searchsorted(np.unique(tokens[layer, missing]), tokens[layer, missing])
            shares[layer, missing] = shares_of(reply, forward, canvas.end)[0, at]
        return Tracked(tokens, shares)


def _attention_of(
    canvas: Canvas, layer: int, positions: Positions, outputs: NDArray[np.float32]
) -> Forward:
    """How tokens attend in a layer now: from their last states, with the keys as they are."""
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
