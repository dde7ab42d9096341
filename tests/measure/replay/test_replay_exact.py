"""A replay drafts what the engine drafts, step by step, or says that it is not exact."""

from dataclasses import replace
from functools import cache

import pytest
from workloads import CURVE, drafts, engine_runs, items, recording_of, toy

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.methods.specs import methods, parse
from paradecode_lab.measure.replay import Recording, play, replayable
from paradecode_lab.measure.replay.player import replayed

GREEDY = SamplingParams(seed=5)
SAMPLED = SamplingParams(temperature=0.8, seed=11)
ITEMS = items(4, tokens=32)
READ_REJECTED_ROWS = {"token-recycling", "jacobi", "lookahead", "rasd"}


@cache
def recording(params: int) -> Recording:
    return recording_of(toy(), ITEMS, (GREEDY, SAMPLED)[params])


def same(spec: str, params: int, made: Recording | None = None) -> bool:
    made = made or recording(params)
    ran = engine_runs(toy(), ITEMS, (GREEDY, SAMPLED)[params], spec)
    played = [sequence for sequence, _, _ in replayed(made, parse(spec), CURVE)]
    return [drafts(a) for a in ran] == [drafts(b) for b in played]


NAMES = replayable(recording(0))


@pytest.mark.first(9)
@pytest.mark.parametrize(("budget", "params"), [
    ("fixed", 0), ("fixed", 1), ("auto", 1), pytest.param("auto", 0, marks=pytest.mark.slow),
], ids=["fixed-greedy", "fixed-sampled", "auto-sampled", "auto-greedy"])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_the_engines_where_replay_says_so(name, budget, params):
    spec = f"{name}(budget={budget},num_speculative_tokens=5)"
    outcome = play(recording(params), spec)
    if outcome.exact:
        assert same(spec, params)
    if name in READ_REJECTED_ROWS and budget == "fixed":
        assert not outcome.exact
    elif name not in READ_REJECTED_ROWS:
        assert outcome.exact


def test_the_list_of_methods_is_not_empty_and_names_no_second_model():
    assert {"prompt-lookup", "suffix", "stand", "token-recycling"} <= set(NAMES)
    assert not set(NAMES) & {"draft-model", "layer-skip", "swift", "del", "unified-layer-skip"}


@pytest.mark.parametrize("params", [0, 1], ids=["greedy", "sampled"])
def test_fusions_of_exact_drafters_are_exact(params):
    spec = "suffix+prompt-lookup(budget=fixed)"
    assert play(recording(params), spec).exact
    assert same(spec, params)


def test_one_wrong_token_is_noticed():
    first = recording(0).requests[0]
    output = first.output.copy()
    output[len(output) // 2] = (output[len(output) // 2] + 1) % 60
    planted = replace(
        recording(0), requests=(replace(first, output=output), *recording(0).requests[1:])
    )
    assert same("prompt-lookup(budget=fixed)", 0)
    assert not same("prompt-lookup(budget=fixed)", 0, planted)


@pytest.mark.parametrize("params", [
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, seed=2),
    SamplingParams(temperature=0.7, top_p=0.9, logit_bias={7: 2.0}, seed=3),
    SamplingParams(min_tokens=12, stop_token_ids=(9, 10, 11, 12), seed=4),
], ids=["penalties", "bias", "stops"])  # fmt: skip
def test_processors_and_stops(params):
    made = recording_of(toy(), items(), params)
    for spec in ("prompt-lookup(budget=fixed)", "stand(budget=fixed)", "suffix(budget=fixed)"):
        ran = engine_runs(toy(), items(), params, spec)
        played = [sequence for sequence, _, _ in replayed(made, parse(spec), CURVE)]
        assert [drafts(a) for a in ran] == [drafts(b) for b in played]
        assert play(made, spec).exact


def test_too_few_of_each_distribution_make_it_inexact():
    few = recording_of(toy(), items(2), GREEDY, k=4)
    assert not play(few, "stand(budget=fixed)").exact
    assert play(few, "prompt-lookup(budget=fixed)").exact


@pytest.mark.parametrize(
    "spec", ["draft-model", "pearl", "mirror-sd", "layer-skip", "swift", "del",
             "unified-layer-skip", "prompt-lookup+swift"]
)  # fmt: skip
def test_methods_with_forwards_of_their_own_are_refused(spec):
    with pytest.raises(InvalidInput, match="decoder"):
        play(recording(0), spec)


def test_verifiers_that_draw_other_tokens_are_refused_at_a_temperature():
    spec = "prompt-lookup(verifier=nss)"
    assert play(recording(0), spec).exact
    with pytest.raises(InvalidInput, match="verifier"):
        play(recording(1), spec)


def test_no_method_is_forgotten():
    # Names are listed again here, because other tests register methods.
    refused = set(methods()) - set(replayable(recording(0))) - {"greedy"}
    for name in refused:
        if methods()[name].training == "none":
            with pytest.raises(InvalidInput):
                play(recording(0), name)


def test_prompts_of_one_token_and_of_several_chunks():
    long = items(1, length=90)[0]
    prompts = [replace(long, id="one", token_ids=(7,)), long]
    made = recording_of(toy(), prompts, SAMPLED)
    for request in made.requests:
        assert len(request.top_ids) == len(request.text) - 1
    spec = "stand(budget=fixed)"
    ran = engine_runs(toy(), prompts, SAMPLED, spec)
    played = [sequence for sequence, _, _ in replayed(made, parse(spec), CURVE)]
    assert [drafts(a) for a in ran] == [drafts(b) for b in played]
