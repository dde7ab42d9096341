"""Makes the forward that a cache rule's plan describes."""

from __future__ import annotations

import numpy as np

from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Store
from paradecode.core.errors import DecoderError
from paradecode.methods.canvas.caches.base import RowPlan
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Marks, Positions, Tokens


def forward_of(canvas: Canvas, plan: RowPlan, positions: Positions) -> Forward:
    """The forward of a plan, whose logits [K, V] predict ``positions`` int64 [K].

    Raises:
        DecoderError: if the plan contradicts the canvas.
    """
    rows = plan.rows.copy()
    asked = positions - canvas.shift
    rows[asked] = True
    fed = np.flatnonzero(rows).astype(np.int32)
    see = plan.see & ~rows
    _check(canvas, plan, see, fed)
    slots = np.where(plan.store[fed], fed, -1).astype(np.int32)
    return Forward(
        canvas.tokens[fed],
        attend=_attention(canvas),
        store=Overwrite(slots) if plan.store.any() else Store.NONE,
        positions=fed,
        visible=np.flatnonzero(see).astype(np.int32),
        logits=np.searchsorted(fed, asked).astype(np.int32),
    )


def ordered(
    canvas: Canvas, given: Marks, known: Positions, tokens: Tokens, asked: Positions
) -> Forward:
    """Rows of ``tokens`` at ``known``, and behind them rows of the masks ``asked``, in a given
    order.

    Each row sees the tokens before it: first those that were ``given``, then those to its left.
    Given tokens see one another as the model's attention allows. A mask sees itself, but no other
    mask. In a model that shifts, the row to the left predicts a masked position, so that token has
    a second row, or a mask has it where the token is unknown. This second row does not see the
    first one, unless the first one is cached, because all rows see the cache.
    """
    at, count = np.concatenate([known, asked - canvas.shift]), len(known)
    seen: Marks = np.eye(len(at), dtype=bool)
    seen[:, :count] |= given[known] | (at[:, None] > known)
    seen[count:, :count] &= at[count:, None] != known
    first = given[known]
    if first.any():
        blocks = known // canvas.block if canvas.block else known * 0
        seen[:count, :count] = blocks[:, None] >= blocks
    text = canvas.tokens.copy()
    text[known] = tokens
    asks = text[asked - 1] if canvas.shift else np.full(len(asked), canvas.mask_token)
    return Forward(
        np.concatenate([tokens, asks]).astype(np.int32),
        attend=seen,
        store=Overwrite(np.where(np.arange(len(at)) < count, at, -1).astype(np.int32)),
        positions=at.astype(np.int32),
        visible=np.flatnonzero(canvas.cached).astype(np.int32),
        logits=np.arange(count, len(at), dtype=np.int32),
    )


def _check(canvas: Canvas, plan: RowPlan, see: Marks, fed: Tokens) -> None:
    if (see & ~canvas.cached).any() or (plan.store & ~plan.rows).any():
        raise DecoderError("a plan may see cached positions, and store computed ones only")
    # All rows see the same cached positions.
    if canvas.block and see.any() and np.flatnonzero(see)[-1] >= canvas.reach(int(fed[0]) + 1):
        raise DecoderError("rows of a model with blocks cannot see cached later blocks")


def _attention(canvas: Canvas) -> Attend | BlockCausal:
    if canvas.block == 0:
        return Attend.FULL
    return Attend.CAUSAL if canvas.block == 1 else BlockCausal(canvas.block)
