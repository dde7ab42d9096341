"""Several canvases in one forward."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.core.request import Attend, BlockCausal, Forward, Overwrite, Reply, Store
from paradecode.methods.canvas.canvas import Canvas

MOST_ROWS = 4096
"""Rows of all canvases of a forward together; the visibility mask is that wide and that high."""


def run_branches(
    forwards: Sequence[Forward], tree: bool = True
) -> Generator[Forward | list[Forward], Any, list[Logits]]:
    """Run the forwards of several canvases at the same time; the logits of each of them.

    Only the first one stores what it was asked to store.

    Args:
        forwards: with the same cached slots visible, and none of those among their own rows.
        tree: as one sequence of rows, each seeing the rows of its own canvas (one forward);
            otherwise as a batch (a forward each, which share a step of the engine).
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
    """The forward with the tokens of another canvas, and some of its logits' rows."""
    return replace(forward, tokens=canvas.tokens[_positions(forward)], logits=_asked(forward)[rows])


def together(forwards: Sequence[Forward]) -> Forward:
    """One forward of all the rows, in which no canvas sees another one."""
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
    """bool [K, K]: which of its own rows each row sees."""
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
