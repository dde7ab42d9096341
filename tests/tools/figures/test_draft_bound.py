"""The bound of drafts: the cheapest way against all ways, and drafts that change nothing."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from paradecode import LLM
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import run
from paradecode.engine.request import GenerationRequest
from tools.figures.draft_bound import Watched, rights, seconds, watched


def every_way(
    right: list[list[int]], levels: list[float], curve: CostCurve, at: int
) -> list[float]:
    """The seconds that each way takes from a position on."""
    if at == len(right):
        return [0.0]
    sizes = [(0, 0.0)]
    for most, level in zip(right[at], levels, strict=True):
        sizes += [(n, n * level) for n in range(1, min(most, len(right) - 1 - at) + 1)]
    return [
        curve.at(1 + size, 40 + at) + drafting + rest
        for size, drafting in sizes
        for rest in every_way(right, levels, curve, at + 1 + size)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_way_is_the_cheapest_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    right = rng.integers(0, 4, (9, 2)).tolist()
    column = np.cumsum(rng.random(6)) + 1.0
    curve = CostCurve((1, 2, 3, 4, 5, 6), (64,), (tuple(column.tolist()),))
    levels = [0.0, float(rng.random())]
    found = seconds(right, levels, 40, curve)
    assert found == pytest.approx(min(every_way(right, levels, curve, 1)))
    assert found <= seconds([[0, 0]] * 9, levels, 40, curve) == pytest.approx(8 * column[0])


def test_what_is_right_is_counted_at_each_position() -> None:
    drafts = {
        1: [TokenTree.chain([5, 6, 9]), TokenTree.chain([7])],
        2: [TokenTree.chain([6, 7, 8])] * 2,
    }
    assert rights(drafts, [4, 5, 6, 7]) == [[0, 0], [2, 0], [2, 2], [0, 0]]


def test_watched_drafters_change_nothing() -> None:
    prompt = "copy: Ana Bob Cora Ana Bob Cora Ana Bob"
    with LLM("paradecode/tiny-autoregressive", backend="native", threads=1) as llm:
        ids = np.array(llm.chat_tokens([{"role": "user", "content": prompt}]), np.int32)
        decoder = watched("prompt-lookup+suffix")
        request = GenerationRequest(
            ids, lambda: decoder, SamplingParams(temperature=0.0, max_tokens=24)
        )
        sequence = run(llm.engine, [request])[0]
        plain = llm.complete([ids.tolist()], decoder="greedy", temperature=0, max_tokens=24)[0]
    output = sequence.tokens[len(ids) :].tolist()
    assert output == plain.token_ids
    drafts = cast(Watched, decoder.drafter).drafts
    assert set(range(1, len(output) - 1)) <= drafts.keys()
    assert max(len(trees[0]) for trees in drafts.values()) > 1
    assert sequence.stats.forwards == len(output)
