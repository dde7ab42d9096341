"""Finds the ancestors of each row, whose path the layers with a recurrent state follow.

A row is one position in a forward pass, or one cached position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput

Mask = NDArray[np.bool_]


def lineage(
    start: int,
    context: int,
    tail: NDArray[np.int32],
    positions: NDArray[np.int32],
    mask: Mask | None,
) -> list[NDArray[np.int64]]:
    """Return the ancestors of each row from position ``start`` on, in order of position.

    Args:
        start: first position; at most ``context``.
        context: number of leading slots that every row attends to, at positions 0 .. context - 1.
        tail: int32 [T], positions of further cached rows.
        positions: int32 [K], positions of the rows.
        mask: bool [K, T + K] or None, as in :class:`paradecode.backends.interface.Span`.

    Returns:
        For each row int64 [position - start]: columns of the cached slots ``start .. context - 1``,
            then of ``tail``, then of the rows.

    Raises:
        InvalidInput: if a row does not attend to exactly one row at each position before its own,
            attends to a later position, or does not attend to all ancestors of its parent.
    """
    count, known = len(positions), context - start
    places = np.concatenate([np.arange(start, context), tail, positions]).astype(np.int64)
    seen = np.ones((count, len(places)), bool)
    if mask is not None:
        seen[:, known:] = mask
    else:
        seen[:, known + len(tail) :] = np.tri(count, dtype=bool)
    paths = []
    for row, place in enumerate(positions.tolist()):
        seen[row, known + len(tail) + row] = False
        columns = np.flatnonzero(seen[row])
        columns = columns[np.argsort(places[columns], kind="stable")]
        if not np.array_equal(places[columns], np.arange(start, place)):
            fix = "layers with a state need one row at each position before a row's own"
            raise InvalidInput("mask", f"row {row} at position {place}", fix)
        paths.append(columns)
    for row, path in enumerate(paths):
        parent = int(path[-1]) - known - len(tail) if len(path) else -1
        if parent >= 0 and not np.array_equal(path[:-1], paths[parent]):
            fix = "a row must see what the row at the position before its own sees"
            raise InvalidInput("mask", f"row {row} behind row {parent}", fix)
    return paths


def chain(paths: list[NDArray[np.int64]], known: int, tail: int) -> int:
    """Return how many leading rows follow the context and one another in a chain.

    Args:
        paths: the result of :func:`lineage`.
        known: number of cached slots among its columns.
        tail: number of tail rows among its columns.
    """
    columns = np.concatenate([np.arange(known), known + tail + np.arange(len(paths))])
    for row, path in enumerate(paths):
        if not np.array_equal(path, columns[: known + row]):
            return row
    return len(paths)
