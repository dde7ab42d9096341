"""Tests of input-copy and predicted-output, which follow a source text through edits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, certain, draft, play
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods.draft.drafters.input_copy import (
    AMBIGUOUS,
    FOLLOWING,
    FOUND,
    LOST,
    STEADY,
    SUPPOSED,
    Alignment,
    PredictedOutput,
)
from paradecode.testing.toy import ToyBackend

SOURCE = np.random.default_rng(0).permutation(100)[:60].tolist()


def says(output: list[int], start: int) -> object:
    return certain(
        lambda text: output[len(text) - start] if len(text) - start < len(output) else 0, 128
    )


def follow(source: list[int], output: list[int], n: int = 3, start: int | None = None) -> Alignment:
    alignment = Alignment(np.array(source, np.int32), n, start)
    for end in range(1, len(output) + 1):
        alignment.advance(np.array(output[:end], np.int32), 1)
    return alignment


def test_a_copied_source_takes_few_forwards():
    """A copied source takes two forwards: the first gives one token, the second all others.

    A draft has at most 64 tokens.
    """
    seq = Request([120, 121, *SOURCE, 122], 60, vocabulary=128)
    play("iad(num_speculative_tokens=64,budget=fixed)", seq, says(SOURCE, 63))
    assert seq.output == SOURCE
    assert len(seq.commits) == 2


def test_after_an_edit_the_place_is_found_again():
    for edit in ([110], [110, 111, 112], []):  # Replaced, inserted, left out.
        output = SOURCE[:20] + edit + SOURCE[22:50]
        seq = Request(SOURCE, len(output), vocabulary=128, prediction=SOURCE)
        play("predicted-output(num_speculative_tokens=16)", seq, says(output, 60))
        assert seq.output == output
        assert len(seq.commits) <= 7 + len(edit)


def test_reasons():
    source = [1, 2, 3, 4, 2, 5, 6, 7]
    assert follow(source, []).reason == LOST
    assert follow(source, [3]).reason == FOUND
    assert (follow(source, [3]).place, follow(source, [3, 4]).reason) == (3, FOLLOWING)
    assert follow(source, [1, 2, 3, 4, 2, 5]).reason == STEADY
    assert (follow(source, [2]).reason, follow(source, [2]).place) == (AMBIGUOUS, 5)
    assert (follow(source, [4, 2]).reason, follow(source, [9, 4, 2]).place) == (FOLLOWING, 5)
    supposed = follow(source, [3, 9])
    assert (supposed.reason, supposed.place) == (SUPPOSED, 4)
    assert follow(source, [3, 9, 9]).reason == LOST
    assert follow(source, [3, 9, 2]).reason == FOLLOWING  # The supposition was right.


def test_places_behind_the_old_one_come_first():
    source = [1, 2, 8, 9, 1, 2, 7, 6, 1, 2, 5]
    alignment = follow(source, [8, 30, 31, 1])
    assert (alignment.reason, alignment.place) == (AMBIGUOUS, 5)
    assert alignment.draft(2) == ([2, 7], [AMBIGUOUS, FOLLOWING])


@given(
    st.lists(st.integers(0, 3), max_size=20),
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from([None, 0]),
)
def test_any_source_and_output(source, output, n, start):
    alignment = follow(source, output, n, start)
    tokens, reasons = alignment.draft(5)
    assert len(tokens) == len(reasons) <= 5
    assert tokens == ([] if alignment.reason == LOST else source[alignment.place :][:5])
    in_one = Alignment(np.array(source, np.int32), n, start)
    in_one.advance(np.array(output, np.int32), len(output))
    assert (in_one.place, in_one.reason) == (alignment.place, alignment.reason)


def test_the_prediction_is_drafted_from_its_start():
    seq = Request([1, 2], prediction=[7, 8, 9])
    assert draft(PredictedOutput(), seq).tokens.tolist() == [7, 8, 9]
    assert len(draft(PredictedOutput(), Request([1, 2]))) == 0
    assert len(draft(PredictedOutput(), Request([1, 2], prediction=[]))) == 0


def engine_request(prediction: object) -> GenerationRequest:
    from paradecode.methods.specs import parse

    return GenerationRequest(
        np.array([5, 6, 7], np.int32), parse("predicted-output"),
        SamplingParams(max_tokens=20, ignore_eos=True), prediction=prediction,
    )  # type: ignore[arg-type]  # fmt: skip


def test_predictions_reach_the_method_through_the_engine():
    engine = Engine({"target": ToyBackend()})
    plain = engine.add(engine_request(None))
    while engine.busy:
        engine.step()
    told = engine.add(engine_request(np.array(plain.output)))
    while engine.busy:
        engine.step()
    assert told.output == plain.output
    assert told.stats.forwards <= 4 < plain.stats.forwards


@pytest.mark.parametrize("bad", [[99], [-1], [[1, 2]], [0.5]])
def test_bad_predictions_are_refused(bad):
    with pytest.raises(InvalidInput, match="prediction"):
        Engine({"target": ToyBackend()}).add(engine_request(np.array(bad)))


def test_long_predictions_are_cut_to_the_context():
    engine = Engine({"target": ToyBackend()})
    sequence = engine.add(engine_request(np.zeros(100_000, np.int64)))
    assert sequence.prediction is not None
    assert len(sequence.prediction) == engine.config.context_length
