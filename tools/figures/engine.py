"""How the figures use the engine and its backends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode import LLM
from paradecode.backends.interface import PAGE, Span
from paradecode.core.decoder import TARGET
from paradecode.engine import cost
from paradecode.engine.cost import CostCurve


def calibrate(llm: LLM) -> CostCurve:
    """Measure what forwards cost now, and let the automatic budget decide by that."""
    llm.engine.load.curve = cost.measure(llm.backend, llm.engine.pools[TARGET].count)
    return llm.engine.load.curve


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
