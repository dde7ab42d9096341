"""A forward of a backend, as the figures time it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Span


def span(tokens: NDArray[np.int32], context: int, logits: int, first_page: int = 0) -> Span:
    """A forward of ``tokens`` behind ``context`` cached ones, with logits of the last rows.

    Args:
        tokens: int32 [rows].
        logits: how many rows at the end are wanted.
        first_page: where the sequence's K/V pages begin.
    """
    rows = len(tokens)
    slots = np.arange(context, context + rows, dtype=np.int32)
    return Span(
        pages=first_page + np.arange(-(-(context + rows) // PAGE), dtype=np.int32),
        tokens=tokens,
        positions=slots,
        slots=slots,
        context=context,
        logits=np.arange(rows - logits, rows, dtype=np.int32),
    )
