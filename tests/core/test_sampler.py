"""Penalties and other processors that read the text follow the paths of a draft tree."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.logits import ArrayLogits
from paradecode.core.noise import MASK64, Purpose, gumbel, key, mix
from paradecode.core.sampling import Sampler, SamplingParams
from tiers import examples

V = 9
token_ids = st.integers(0, V - 1)
paths = st.lists(token_ids, max_size=5)
params_strategy = st.builds(
    SamplingParams, max_tokens=st.just(50), min_tokens=st.integers(0, 8),
    temperature=st.sampled_from([0.0, 0.8, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    logit_bias=st.one_of(st.none(), st.dictionaries(token_ids, st.floats(-5, 5), max_size=3)),
    seed=st.integers(0, MASK64),
)  # fmt: skip
raw_rows = st.lists(
    st.one_of(st.floats(-4, 4, width=32), st.just(-math.inf)), min_size=V, max_size=V
).filter(lambda row: any(map(math.isfinite, row)))


def processed(row, params, prompt, output, stops):
    """Apply the definitions to one token at a time; ``output`` ends with the draft's path."""
    result = []
    for token, value in enumerate(row):
        out = value
        if math.isfinite(value) and token in prompt + output:
            out = (
                value / params.repetition_penalty
                if value > 0
                else value * params.repetition_penalty
            )
        if token in output:
            out -= params.presence_penalty + params.frequency_penalty * output.count(token)
        out += (params.logit_bias or {}).get(token, 0.0)
        if token in stops and len(output) < params.min_tokens:
            out = -math.inf
        result.append(out)
    return result


@examples(300)
@given(params_strategy, raw_rows, paths, paths, paths, st.lists(token_ids, max_size=2))
def test_processors_follow_their_definitions(params, row, prompt, output, path, stops):
    sampler = Sampler(params, np.array(prompt, np.int32), stops)
    for cut in range(0, len(output), 2):  # Committed in pieces.
        sampler.advance(output[cut : cut + 2])
    logits = ArrayLogits(np.array([[0.0] * V, row], np.float32))
    got = sampler.processed(logits, 1, path)
    expected = processed(row, params, prompt, output + path, stops)
    np.testing.assert_allclose(got.values[0], expected, atol=2e-5)
    assert logits.values[1].tolist() == row


@given(params_strategy, paths, paths)
def test_a_path_is_the_same_as_committing_it(params, prompt, path):
    """A draft row draws the same token as plain decoding after the draft's tokens are committed."""
    logits = ArrayLogits(np.random.default_rng(len(path)).normal(size=(1, V)).astype(np.float32))
    ahead = Sampler(params, np.array(prompt, np.int32), [2])
    there = Sampler(params, np.array(prompt, np.int32), [2])
    there.advance(path)
    assert ahead.token(logits, 0, path) == there.token(logits, 0)
    assert ahead.noise_key(len(path)) == there.noise_key(0)


def test_token_is_noise_of_the_absolute_position():
    params = SamplingParams(temperature=0.7, seed=5)
    sampler = Sampler(params, np.arange(4, dtype=np.int32), ())
    sampler.advance([1, 1])
    values = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    position = 4 + 2 + 3
    noisy = values[2].astype(np.float64) / 0.7 + gumbel(key(mix(5), position), np.arange(50))
    assert sampler.token(ArrayLogits(values), 2, [7, 8, 9]) == noisy.argmax()
    assert sampler.noise_key(3, Purpose.DRAFT) == key(mix(5), position, Purpose.DRAFT)


def test_min_tokens_counts_the_path():
    sampler = Sampler(SamplingParams(min_tokens=3), np.array([0], np.int32), [4])
    logits = ArrayLogits(np.eye(1, V, 4, dtype=np.float32))
    assert sampler.token(logits, 0) == 0
    assert sampler.token(logits, 0, [1, 1]) == 0
    assert sampler.token(logits, 0, [1, 1, 1]) == 4
    sampler.advance([1, 1])
    assert sampler.token(logits, 0) == 0
    assert sampler.token(logits, 0, [1]) == 4


def test_penalty_flips_the_choice_and_only_after_the_token():
    sampler = Sampler(SamplingParams(presence_penalty=2.0), np.array([5], np.int32), ())
    row = np.zeros((1, V), np.float32)
    row[0, 5], row[0, 6] = 3.0, 2.0
    logits = ArrayLogits(row)
    assert sampler.token(logits, 0) == 5  # The prompt does not count for presence.
    assert sampler.token(logits, 0, [5]) == 6
    sampler.advance([5])
    assert sampler.token(logits, 0) == 6


def test_plain_says_when_the_bare_argmax_is_enough():
    prompt = np.array([1], np.int32)
    assert Sampler(SamplingParams(), prompt, [2]).plain
    for values in (
        {"temperature": 0.5}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0},
        {"repetition_penalty": 1.1}, {"logit_bias": {1: 1.0}}, {"min_tokens": 1},
    ):  # fmt: skip
        assert not Sampler(SamplingParams(**values), prompt, [2]).plain
    later = Sampler(SamplingParams(min_tokens=2), prompt, [2])
    later.advance([0, 0])
    assert later.plain


@given(params_strategy, paths, paths)
def test_plain_is_never_wrong(params, prompt, path):
    sampler = Sampler(params, np.array(prompt, np.int32), [3])
    logits = ArrayLogits(np.random.default_rng(7).normal(size=(1, V)).astype(np.float32))
    if sampler.plain:
        assert sampler.token(logits, 0, path) == logits.argmax()[0]


def test_same_seed_same_tokens_other_seed_other_tokens():
    values = np.zeros((1, 1000), np.float32)
    drawn = []
    for seed in (1, 1, 2):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), np.zeros(3, np.int32), ())
        drawn.append([sampler.token(ArrayLogits(values), 0, [0] * offset) for offset in range(6)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 3  # Positions differ, too.
