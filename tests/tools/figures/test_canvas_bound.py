"""The bound on decoding in blocks counts the forwards that the canvas loop really makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paradecode import LLM
from paradecode.backends.interface import Span, SpanResult
from tools.figures.canvas_bound import BLOCKS, bounds, forward_times
from tools.figures.graded import BLOCK, block_model

ROWS = {(1, 1), *((b, b) for b in BLOCKS), *((2 * b, b) for b in BLOCKS)}


def test_rows_that_cost_the_same_gain_half_of_them() -> None:
    for bound in bounds({(rows, logits): 0.5 * rows for rows, logits in ROWS}):
        assert bound["most"][1] == pytest.approx(0.5)
        assert bound["most"][2] == pytest.approx(1 / 3)
    for bound in bounds(dict.fromkeys(ROWS, 0.5)):  # Weights are all that costs.
        assert bound["most"] == {n: bound["block"] / n for n in (1, 2, 4)}


def test_forwards_have_the_rows_of_a_block_and_of_the_block_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is timed is what decoding asks for, behind the block with the end of the prompt."""
    asked: list[tuple[int, int]] = []
    with LLM(block_model(tmp_path / "blocks" / "model"), backend="native") as llm:
        forward = llm.backend.forward

        def counted(spans: Sequence[Span]) -> list[SpanResult]:
            asked.extend((len(span.tokens), len(span.logits)) for span in spans)
            return forward(spans)

        monkeypatch.setattr(llm.backend, "forward", counted)
        llm.complete(["chain: 3 5 0 6 1 2 4 7"], decoder="static(cache=prefix)",
                     max_tokens=4 * BLOCK, ignore_eos=True)  # fmt: skip
        # A block with one token a forward: the last one.
        assert asked[-BLOCK:] == [
            (2 * BLOCK, BLOCK),
            *((BLOCK, n) for n in range(BLOCK - 1, 0, -1)),
        ]
        asked.clear()
        times = forward_times(llm.backend, 8, 1)
        assert set(asked) == set(times) == ROWS
    assert all(np.isfinite(seconds) and seconds > 0 for seconds in times.values())
