"""Which cached slots, and which rows of the forward, each row of a forward sees.

A forward needs this only if it names slots, or if its rows are neither a text nor a chain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite
from paradecode.core.errors import DecoderError
from paradecode.core.tree import TokenTree
from paradecode.engine.kv import KVCache


def seen_slots(forward: Forward, cache: KVCache) -> NDArray[np.int32] | None:
    """int32 [V]: the cached slots that the rows see, if not all of the committed ones.

    Rows that replace slots see the new content.

    Raises:
        DecoderError: if a slot of ``forward.visible`` holds nothing.
    """
    named = forward.visible
    if named is not None and not cache.holds(named, forward.layers):
        raise DecoderError("visible names slots in which no keys and values were stored")
    if not isinstance(forward.store, Overwrite):
        return named
    seen = np.arange(cache.length, dtype=np.int32) if named is None else named
    replaced = np.zeros(cache.capacity + 1, bool)  # -1, for rows that replace none, is the last.
    replaced[forward.store.slots] = True
    return seen[~replaced[seen]]


def mask_of(
    forward: Forward, at: NDArray[np.int32], held: int, tentative: TokenTree
) -> NDArray[np.bool_]:
    """bool [K + M, T + K + M]: which tentative slots, and which new rows, each row sees.

    Args:
        at: int32 [K], positions of the ``tokens`` rows.
        held: T, the number of tentative rows in the cache.
        tentative: the tree of these rows, with the forward's tree behind them.
    """
    count, drafted = len(at), len(forward.tree)
    rows, width = count + drafted, held if drafted else 0
    mask = np.zeros((rows, width + rows), bool)
    mask[:count, width : width + count] = _among(forward.attend, at)
    if drafted:
        mask[count:, width : width + count] = True
        seen = tentative.visibility[held:]
        mask[count:, :held], mask[count:, width + count :] = seen[:, :held], seen[:, held:]
    return mask


def _among(
    attend: Attend | BlockCausal | NDArray[np.bool_], positions: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """bool [K, K]: which of the forward's own rows, at ``positions`` [K], see one another."""
    count = len(positions)
    if isinstance(attend, BlockCausal):
        blocks = positions // attend.size
        return blocks[:, None] >= blocks[None, :]
    if isinstance(attend, np.ndarray):
        if attend.shape != (count, count) or attend.dtype != np.bool_:
            raise DecoderError(f"attend must be bool [{count}, {count}], not {attend.shape}")
        return attend
    return np.tri(count, dtype=bool) if attend is Attend.CAUSAL else np.ones((count, count), bool)
