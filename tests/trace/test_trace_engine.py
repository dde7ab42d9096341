"""Traces of real runs on toy models record what the engine did."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from trace_samples import Words

from engines import served
from paradecode.completion import Completion, completion_of
from paradecode.engine.engine import Engine, Limits
from paradecode.testing.toy import LetterText, ToyBackend, letter, toy_config
from paradecode.trace import Trace, page, trace_record
from paradecode.trace.record import CanvasStepRecord, DraftStepRecord

PROMPT = np.array([5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7], np.int32)


class Letters(Words):
    """A tokenizer for the toy models' tokens."""

    def token(self, index: int) -> str:
        return letter(index)

    def is_control(self, index: int) -> bool:
        return False

    def decode(self, ids: Any, skip_special: bool = True) -> str:
        return "".join(letter(index) for index in ids)


def run(decoder: str, config: Mapping[str, Any], **settings: Any) -> tuple[Completion, Trace]:
    engine = Engine({"target": ToyBackend(toy_config(**config))}, Limits(), LetterText)
    (sequence,) = served(
        engine, [(decoder, PROMPT, {"max_tokens": 24, "ignore_eos": True, **settings})]
    )
    completion = completion_of(sequence)
    return completion, trace_record(completion, cast(Any, Letters()), "toy", decoder, "toy")


@pytest.mark.parametrize("decoder", [
    "greedy", "prompt-lookup(budget=fixed)", "token-recycling(budget=fixed)", "lookahead",
])  # fmt: skip
def test_drafts(decoder: str) -> None:
    completion, trace = run(decoder, {}, logprobs=3)
    steps = cast("list[DraftStepRecord]", trace["steps"])
    assert [t["id"] for t in trace["tokens"]] == completion.token_ids
    assert sum(step["accepted"] for step in steps) == completion.stats.accepted
    for step in steps:
        tree = step["tree"]
        assert [tree["tokens"][node] for node in tree["accepted"]] == step["tokens"][
            : step["accepted"]
        ]
        above = [-1, *tree["accepted"]]
        assert [tree["parents"][node] for node in tree["accepted"]] == above[:-1]
    assert all(token["probability"] is not None for token in trace["tokens"])
    assert all(len(token["top"]) == 3 for token in trace["tokens"])
    assert page(trace)


@pytest.mark.parametrize("attention", ["full", "block"])
@pytest.mark.parametrize("decoder", ["static", "threshold(threshold=0.1)"])
def test_canvases(decoder: str, attention: str) -> None:
    config = {"attention": attention, **({"block_length": 4} if attention == "block" else {})}
    completion, trace = run(decoder, config, logprobs=2)
    steps = cast("list[CanvasStepRecord]", trace["steps"])
    assert trace["family"] == "diffusion"
    masked, canvas = set(range(trace["canvas"])), {}
    for step in steps:
        placed, open_ = step["committed"], step["provisional"]
        masked -= set(placed["positions"])
        canvas |= dict(zip(placed["positions"], placed["tokens"], strict=True))
        start, end = step["block"]
        assert set(open_["positions"]) == {p for p in masked if start <= p < end}
        assert all(0 <= c <= 1 for c in placed["confidences"] + open_["confidences"])
    ids = completion.token_ids
    assert [canvas[position] for position in range(len(ids))] == ids
    assert [token["id"] for token in trace["tokens"]] == ids
    assert page(trace)


def test_proposals_are_recorded_on_request_only() -> None:
    _, trace = run("static", {"attention": "full"})
    steps = cast("list[CanvasStepRecord]", trace["steps"])
    assert not any(step["provisional"]["positions"] for step in steps)
