"""Scores outputs under an oracle, so that no engine wins a speed test by worse arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.backends.interface import PAGE, Backend, Span
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import OutputKey, Score


class OutputScorer:
    """Scores outputs, each with one forward over its prompt and itself.

    Args:
        backend: the oracle, which has the same weights in float32 or better.
        items: all items that will be scored; the longest prompt decides how much memory is
            reserved.
        longest_output: the most tokens of an output.
        reserved: number of pages that the backend already has. They belong to an idle engine
            without a prefix cache, and are overwritten.
    """

    def __init__(
        self, backend: Backend, items: Sequence[Item], longest_output: int, reserved: int = 0
    ) -> None:
        self.backend = backend
        longest = max(len(item.token_ids) for item in items) + longest_output
        self.pages = -(-longest // PAGE)
        if self.pages > reserved:
            backend.reserve(self.pages)

    def score(self, item: Item, output: Sequence[int]) -> Score:
        """Return how likely the output was, and how many tokens the oracle would have chosen."""
        tokens = np.array([*item.token_ids, *output[:-1]], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        span = Span(
            pages=np.arange(self.pages, dtype=np.int32),
            tokens=tokens,
            positions=rows,
            slots=rows,
            context=0,
            logits=rows[len(item.token_ids) - 1 :],
        )
        logits = self.backend.forward([span])[0].logits
        wanted = np.array(output, np.int32)
        nll = -logits.log_probability(wanted[:, None]).sum()
        return Score(float(nll), int((logits.argmax() == wanted).sum()), len(output))


def distinct_outputs(outputs: Sequence[OutputKey]) -> list[OutputKey]:
    """Return each pair of an item and an output once, without empty outputs."""
    return [key for key in dict.fromkeys(outputs) if key[1]]
