"""Drafting gives the same constrained outputs as plain decoding, with fewer forwards."""

from __future__ import annotations

import json

import jsonschema
import pytest
from constraint_schemas import PERSON, TREE

METHODS = [
    "prompt-lookup",
    "prompt-lookup(budget=fixed)",
    "prompt-lookup(budget=fixed,num_speculative_tokens=20)",
    "suffix+token-recycling",
    "lookahead",
    "jacobi",
    "layer-skip(budget=fixed)",
    "predicted-output",
]
CASES = {
    "schema": ({"type": "json_schema", "value": PERSON}, "Ann is 31 and likes red. As JSON:"),
    "recursive": ({"type": "json_schema", "value": TREE}, "A linked list of 1, 2, 3 as JSON:"),
    "regex": ({"type": "regex", "value": r"[A-Z][a-z]+ is [0-9]+ years old\."}, "How old is Ann?"),
    "lark": ({"type": "lark", "value": 'start: (/[a-z]{1,9}/ ", ")~3 "end"'}, "Three words:"),
    "choice": ({"type": "choice", "value": ["yes", "no", "not at all"]}, "Is it so?"),
}
SAMPLING = [
    {},
    {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.2, "min_tokens": 6},
]
FURTHER = [
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.0, "seed": 2, "top_p": 0.9, "top_k": 40},
]


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "sampling", [*SAMPLING, *(pytest.param(each, marks=pytest.mark.slow) for each in FURTHER)]
)
@pytest.mark.parametrize("name", CASES)
def test_every_method_gives_the_plain_constrained_output(llm, name, sampling):
    """All methods in one batch give the output of plain decoding alone."""
    constraint, prompt = CASES[name]
    settings = {"max_tokens": 48, "constraint": constraint, **sampling}
    plain = llm.complete(prompt, decoder="greedy", **settings)
    asked = [
        request
        for method in METHODS
        for request in llm.requests(llm.encode(prompt), None, {**settings, "decoder": method})
    ]
    sequences = [llm.engine.add(request) for request in asked]
    while llm.engine.busy:
        llm.engine.step()
    for method, sequence in zip(METHODS, sequences, strict=True):
        assert sequence.output == plain.token_ids, method
        assert sequence.finish_reason == plain.finish_reason
        assert sequence.stats.forwards <= plain.stats.forwards


def test_forced_tokens_save_forwards_and_nothing_else_does_here(llm):
    settings = {"max_tokens": 80, "constraint": CASES["schema"][0]}
    plain = llm.complete("Ann is 31. As JSON:", decoder="greedy", **settings)
    # Without a prediction, this method copies the prompt, which is no JSON, so no draft is
    # accepted.
    forced = llm.complete(
        "Ann is 31. As JSON:", decoder="predicted-output(budget=fixed)", **settings
    )
    assert plain.stats.drafted == 0
    assert forced.token_ids == plain.token_ids
    assert forced.stats.forwards <= 0.7 * plain.stats.forwards


@pytest.mark.wide
def test_the_guarantees_of_sampling_verifiers_keep_to_the_constraint(llm):
    for verifier in ("rejection", "specinfer", "block", "traversal", "typical", "nss"):
        for seed in range(3):
            output = llm.complete(
                CASES["schema"][1], max_tokens=80, temperature=1.0, seed=seed,
                constraint=CASES["schema"][0],
                decoder=f"prompt-lookup(verifier={verifier},budget=fixed)",
            )  # fmt: skip
            jsonschema.validate(json.loads(output.text), PERSON)


def test_log_probabilities_are_the_models_own(llm):
    """Log-probabilities are computed before the mask, so a forced token may be very unlikely."""
    constraint = {"type": "choice", "value": ["zebra"]}
    output = llm.complete("1 + 1 =", max_tokens=8, constraint=constraint, logprobs=1)
    free = llm.complete("1 + 1 =", max_tokens=1, logprobs=1)
    assert output.text == "zebra"
    assert output.logprobs[0].top == free.logprobs[0].top
    assert output.logprobs[0].logprob < -5.0


def test_outputs_end_where_nothing_may_follow_and_where_the_model_ends_them(llm, eos):
    done = llm.complete("x", max_tokens=8, constraint={"type": "choice", "value": ["zebra"]})
    assert (done.text, done.finish_reason) == ("zebra", "stop")
    assert done.token_ids[-1] not in eos  # No forward was spent on saying so.
    ended = llm.complete(
        "x", max_tokens=8, constraint={"type": "regex", "value": "a+"}, logit_bias={eos[0]: 1000.0}
    )
    assert ended.text == "a" * len(ended.text)
    assert len(ended.token_ids) == 2
    assert ended.token_ids[-1] == eos[0]
    longer = llm.complete(
        "x", max_tokens=8, constraint={"type": "regex", "value": "a+"}, ignore_eos=True
    )
    assert longer.finish_reason == "length"
    cut = llm.complete("x", max_tokens=3, constraint=CASES["schema"][0])
    assert cut.finish_reason == "length"


def test_several_outputs_and_streams(llm):
    constraint, prompt = CASES["schema"]
    many = llm.complete(prompt, max_tokens=80, temperature=1.0, seed=5, n=3, constraint=constraint)
    for output in (many, *many.alternatives):
        jsonschema.validate(json.loads(output.text), PERSON)
    chunks = llm.stream(llm.encode(prompt), max_tokens=80, constraint=constraint)
    text = "".join(chunk.text for chunk in chunks)
    jsonschema.validate(json.loads(text), PERSON)
