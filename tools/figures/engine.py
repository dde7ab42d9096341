"""Builds forwards of a backend as the figures time them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Span


def span(tokens: NDArray[np.int32], context: int, logits: int, first_page: int = 0) -> Span:
    """Build a forward of ``tokens`` after ``context`` cached tokens, with logits of the last rows.

    Args:
        tokens: int32 [rows], token ids.
        logits: number of rows at the end whose logits are wanted.
        first_page: index of the sequence's first K/V page.
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
