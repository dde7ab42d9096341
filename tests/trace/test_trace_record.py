"""Tests the JSON form of a trace for both families, and that it agrees with the completion."""

import json
from typing import Any, cast

import numpy as np
import pytest
from trace_samples import EOS, Words, completion, denoised, drafted

from paradecode.core.trace import Step
from paradecode.core.tree import TokenTree
from paradecode.trace import Trace, trace_record
from paradecode.trace.record import CanvasStepRecord, DraftStepRecord, piece


def draft_steps(trace: Trace) -> list[DraftStepRecord]:
    assert trace["family"] == "autoregressive"
    return cast("list[DraftStepRecord]", trace["steps"])


def canvas_steps(trace: Trace) -> list[CanvasStepRecord]:
    assert trace["family"] == "diffusion"
    return cast("list[CanvasStepRecord]", trace["steps"])


@pytest.mark.parametrize("make", [drafted, denoised])
def test_it_is_json_and_versioned(make: Any) -> None:
    trace = make()
    assert (trace["format"], trace["version"]) == ("paradecode-trace", 1)
    assert json.loads(json.dumps(trace, allow_nan=False)).keys() == Trace.__annotations__.keys()


@pytest.mark.parametrize("make", [drafted, denoised])
def test_the_tokens_spell_the_text(make: Any) -> None:
    trace = make()
    assert "".join(token["text"] for token in trace["tokens"]) == trace["text"]
    assert trace["tokens"][-1]["id"] in trace["control"]
    assert trace["pieces"][str(trace["tokens"][-1]["id"])] == EOS


@pytest.mark.parametrize("make", [drafted, denoised])
def test_every_id_has_a_piece(make: Any) -> None:
    trace = make()
    ids = {token["id"] for token in trace["tokens"]}
    ids |= {other for token in trace["tokens"] for other, _ in token["top"]}
    for step in trace["steps"]:
        parts = [step.get(name, {}) for name in ("tree", "committed", "provisional")]
        ids |= {token for part in parts for token in part.get("tokens", [])}
    assert {str(token) for token in ids} <= trace["pieces"].keys()


def test_the_accepted_path_spells_the_accepted_tokens() -> None:
    trace = drafted()
    paths = [step["tree"]["accepted"] for step in draft_steps(trace)]
    assert paths == [[], [0, 1], [0, 2], [], []]
    for step in draft_steps(trace):
        tree = step["tree"]
        spelled = [tree["tokens"][node] for node in tree["accepted"]]
        assert spelled == step["tokens"][: step["accepted"]]


def test_drafted_tokens_and_probabilities() -> None:
    trace = drafted()
    words = "".join(token["text"] for token in trace["tokens"] if token["drafted"])
    assert words == " cat sat the mat"
    assert {token["probability"] for token in trace["tokens"]} == {round(np.exp(-0.1), 4)}
    assert [other for _, other in trace["tokens"][0]["top"]] == [0.9048, 0.0821]


def test_replaying_the_canvas_gives_the_output() -> None:
    trace = denoised()
    preset = trace["preset"]
    assert [trace["pieces"][str(token)] for token in preset["tokens"]] == [" answer"]
    canvas = dict(zip(preset["positions"], preset["tokens"], strict=True))
    masked_again = 0
    for step in canvas_steps(trace):
        start, end = step["block"]
        for position in step["remasked"]:
            del canvas[position]
            masked_again += 1
        for position, token in zip(
            step["committed"]["positions"], step["committed"]["tokens"], strict=True
        ):
            assert start <= position < end
            assert position not in canvas
            canvas[position] = token
    assert sorted(canvas) == list(range(trace["canvas"]))
    ids = [token["id"] for token in trace["tokens"]]
    assert [canvas[position] for position in range(len(ids))] == ids
    assert masked_again > 0


def test_canvas_tokens_know_who_committed_them_last() -> None:
    trace = denoised()
    for position, token in enumerate(trace["tokens"]):
        if token["step"] < 0:
            assert (position, token["probability"]) == (trace["preset"]["positions"][0], None)
            continue
        placed = canvas_steps(trace)[token["step"]]["committed"]
        at = placed["positions"].index(position)
        assert placed["tokens"][at] == token["id"]
        assert placed["confidences"][at] == token["probability"]


def test_an_empty_trace() -> None:
    words = Words()
    trace = trace_record(completion(words, [], [], "?"), cast(Any, words), "m", "d", "b")
    assert (trace["tokens"], trace["steps"], trace["text"]) == ([], [], "")


def test_estimates_that_are_no_numbers_stay_valid_json() -> None:
    words = Words()
    token = words.id("a")
    tree = TokenTree.chain([token, token], [float("nan"), float("inf")])
    steps = [Step(1, (token,), 1, 2, tree, 0.1)]
    trace = trace_record(completion(words, steps, [token], "?"), cast(Any, words), "m", "d", "b")
    assert draft_steps(trace)[0]["tree"]["estimates"] == [0.0, 0.0]
    json.dumps(trace, allow_nan=False)


def test_pieces_of_a_sentencepiece_vocabulary_keep_their_space() -> None:
    class Pieces(Words):
        byte_level = False

    words = Pieces()
    assert piece(cast(Any, words), words.id("▁the")) == " the"
    assert piece(cast(Any, words), 0) == EOS
