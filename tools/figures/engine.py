"""How the figures use the engine and its backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paradecode import LLM
from paradecode.backends.interface import PAGE, Span
from paradecode.core.request import TARGET
from paradecode.engine import cost
from paradecode.engine.cost import CostCurve
from paradecode.measure.prompts import Conversation, Item, make_items


def calibrate(llm: LLM) -> CostCurve:
    """Measure what forwards cost now, and let the automatic budget decide by that."""
    llm.engine.load.curve = cost.measure(llm.backend, llm.engine.pools[TARGET].count)
    return llm.engine.load.curve


def first_turns(llm: LLM, prompts: Sequence[Conversation], max_tokens: int) -> list[Item]:
    """The first turn of each conversation, in the model's chat format."""
    first = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
    return make_items(first, llm.chat_tokens, lambda messages, limit: "", max_tokens)


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
