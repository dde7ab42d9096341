"""Builds the forward pass of a cache rule's plan, and one forward pass for several canvases.

A row is one canvas position in a forward pass: its token goes in, and logits come out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Reply, Store
from paradecode.core.errors import DecoderError
from paradecode.core.logits import Logits
from paradecode.methods.canvas.caches.base import RowPlan
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.feasible import Marks, Positions, Tokens


def forward_of(canvas: Canvas, plan: RowPlan, positions: Positions) -> Forward:
    """Return the forward pass of a plan. Its logits [K, V] predict ``positions`` int64 [K].

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
    """Return a forward in which tokens attend in a fixed order, and masks attend to earlier tokens.

    The rows of ``tokens`` at the positions ``known`` come first, then rows for the masks ``asked``.
    The order of the tokens is: first the ``given`` ones (such as the prompt), then the others from
    left to right. Given tokens attend to one another as the model's attention allows. A mask
    attends to the tokens to its left and to itself, but not to other masks.

    In a model with shifted logits, the row to the left of a masked position predicts it. The
    forward pass has one more such row for each mask, with the token to the left, or with a mask
    where that token is unknown. The added row does not attend to the row of ``known`` at the same
    position. (It does if that row is cached, because all rows attend to the cache.)
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


# Several canvases in one forward.

MOST_ROWS = 4096
"""The most rows that the canvases of one forward pass have together.

The attention mask of the forward is square: its memory grows with the square of this number.
"""


def run_branches(
    forwards: Sequence[Forward], tree: bool = True
) -> Generator[Forward | list[Forward], Any, list[Logits]]:
    """Run the forward passes of several canvases together, and return the logits of each.

    Only the first forward stores keys and values.

    Args:
        forwards: forwards that attend to the same cached slots. These slots must not be among their
            rows.
        tree: True runs one forward, in which each row attends only to rows of its own canvas. False
            runs a list of forwards that share a step of the engine.
    """
    if len(forwards) == 1:
        reply: Reply = yield forwards[0]
        return [reply.logits]
    if not tree:
        first, *others = forwards
        replies: list[Reply] = yield [first, *(replace(f, store=Store.NONE) for f in others)]
        return [reply.logits for reply in replies]
    reply = yield together(forwards)
    ends = np.cumsum([0, *(len(_asked(f)) for f in forwards)]).tolist()
    return [reply.logits.select(range(start, end)) for start, end in pairwise(ends)]


def instead(
    forward: Forward, canvas: Canvas, rows: NDArray[np.int64] | slice = slice(None)
) -> Forward:
    """Return ``forward`` with the tokens of another canvas. Only its ``rows`` return logits."""
    return replace(forward, tokens=canvas.tokens[_positions(forward)], logits=_asked(forward)[rows])


def together(forwards: Sequence[Forward]) -> Forward:
    """Return one forward with the rows of all; rows attend only to their own canvas."""
    starts = np.cumsum([0, *(len(f.tokens) for f in forwards)]).tolist()
    mask = np.zeros((starts[-1], starts[-1]), bool)
    for start, forward in zip(starts, forwards, strict=False):
        end = start + len(forward.tokens)
        mask[start:end, start:end] = _among(forward)
    first = forwards[0]
    store = first.store
    if isinstance(store, Overwrite):
        slots = np.full(starts[-1], -1, np.int32)
        slots[: len(store.slots)] = store.slots
        store = Overwrite(slots)
    return replace(
        first,
        tokens=np.concatenate([f.tokens for f in forwards]),
        positions=np.concatenate([_positions(f) for f in forwards]),
        attend=mask,
        store=store,
        logits=np.concatenate([_asked(f) + at for f, at in zip(forwards, starts, strict=False)]),
    )


def _among(forward: Forward) -> NDArray[np.bool_]:
    """Return bool [K, K]: entry (i, j) is True if row i of the forward pass attends to row j."""
    at, attend = _positions(forward), forward.attend
    if isinstance(attend, BlockCausal):
        at = at // attend.size
    elif attend is Attend.FULL:
        return np.ones((len(at), len(at)), bool)
    return at[None, :] <= at[:, None]


def _positions(forward: Forward) -> NDArray[np.int32]:
    assert forward.positions is not None
    return forward.positions


def _asked(forward: Forward) -> NDArray[np.int32]:
    assert forward.logits is not None
    return forward.logits
