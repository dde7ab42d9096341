"""Several canvases in one forward."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Reply, Store
from paradecode.core.logits import Logits
from paradecode.methods.canvas.canvas import Canvas

MOST_ROWS = 4096
"""The most rows that the canvases of one forward have together. Its visibility mask is this large
in both directions."""


def run_branches(
    forwards: Sequence[Forward], tree: bool = True
) -> Generator[Forward | list[Forward], Any, list[Logits]]:
    """Run the forwards of several canvases together, and return the logits of each.

    Only the first forward stores rows.

    Args:
        forwards: they see the same cached slots, which must not be among their own rows.
        tree: run them as one forward, in which each row sees only rows of its own canvas;
            otherwise as a list of forwards, which share a step of the engine.
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
    """The forward with the tokens of another canvas, of which only some rows give logits."""
    return replace(forward, tokens=canvas.tokens[_positions(forward)], logits=_asked(forward)[rows])


def together(forwards: Sequence[Forward]) -> Forward:
    """One forward with the rows of all ``forwards``, in which no canvas sees another one."""
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
    """bool [K, K]: entry (i, j) says that row i of the forward sees its row j."""
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
