from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.errors import InvalidInput
from paradecode.core.noise import MASK64
from paradecode.core.sampling import ALIASES, Sampler, SamplingParams

NAN, INF, HUGE = float("nan"), float("inf"), 10**400

WHOLE = ["max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs"]
REAL = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty"]  # fmt: skip

BAD = [
    *[(name, value) for name in WHOLE for value in
      (True, 1.0, "1", NAN, HUGE, -HUGE, 10**5000, [1], np.float32(1))],
    *[(name, value) for name in REAL for value in
      (True, "1", None, NAN, INF, -INF, HUGE, -HUGE, [1.0], 1j, np.float32(NAN))],
    *[(name, None) for name in ("max_tokens", "min_tokens", "top_k", "n")],
    ("max_tokens", 0), ("max_tokens", -1), ("min_tokens", -1), ("min_tokens", 257),
    ("temperature", -0.1), ("temperature", 101), ("top_k", -2), ("top_p", 0), ("top_p", 0.0),
    ("top_p", 1.01), ("min_p", -0.1), ("min_p", 1.1), ("repetition_penalty", 0),
    ("repetition_penalty", -1), ("presence_penalty", 101), ("frequency_penalty", -101),
    ("n", 0), ("n", 129), ("logprobs", -1), ("logprobs", 21),
    ("seed", -(1 << 63) - 1), ("seed", 1 << 64),
    ("ignore_eos", 1), ("ignore_eos", "yes"), ("ignore_eos", None),
    ("stop", 3), ("stop", [""]), ("stop", ""), ("stop", ["a", 1]), ("stop", [None]),
    ("stop", ["x" * 1025]), ("stop", ["a"] * 17), ("stop", {"a": 1}), ("stop", b"a"),
    ("stop_token_ids", 3), ("stop_token_ids", [-1]), ("stop_token_ids", [True]),
    ("stop_token_ids", [1.0]), ("stop_token_ids", ["1"]), ("stop_token_ids", [HUGE]),
    ("stop_token_ids", list(range(1025))), ("stop_token_ids", "12"),
    ("logit_bias", [1]), ("logit_bias", "x"), ("logit_bias", {-1: 1.0}), ("logit_bias", {"x": 1.0}),
    ("logit_bias", {"-1": 1.0}), ("logit_bias", {"": 1.0}), ("logit_bias", {"1" * 5000: 1.0}),
    ("logit_bias", {1.5: 1.0}), ("logit_bias", {True: 1.0}), ("logit_bias", {None: 1.0}),
    ("logit_bias", {1: NAN}), ("logit_bias", {1: INF}), ("logit_bias", {1: "2"}),
    ("logit_bias", {1: True}), ("logit_bias", {1: 1001}), ("logit_bias", {1: HUGE}),
    ("logit_bias", dict.fromkeys(range(1025), 0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda x: str(type(x).__name__))
def test_bad_values_name_the_field(name, value):
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field.split("[")[0] == name
    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, ValueError)


SPELLINGS = ["max_tokens", *ALIASES]


@pytest.mark.parametrize(("first", "second"), list(permutations(SPELLINGS, 2)))
def test_one_parameter_under_two_names(first, second):
    for value in (5, 6):
        with pytest.raises(InvalidInput, match="give one of them") as caught:
            SamplingParams.from_mapping({first: 5, second: value})
        assert caught.value.field == second
        assert first in caught.value.fix
    assert SamplingParams.from_mapping({first: 5}).max_tokens == 5


def test_message_survives_values_that_cannot_be_shown():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidInput, match="this list is not usable"):
        SamplingParams(temperature=nested)  # type: ignore[arg-type]
    while nested:  # Take it apart without recursion.
        nested = nested.pop()


GOOD = [
    {}, {"top_k": -1}, {"top_p": 1}, {"temperature": 0}, {"seed": -1}, {"seed": MASK64},
    {"logprobs": 0}, {"logprobs": None}, {"logit_bias": {}}, {"stop": ()}, {"min_p": 1},
    {"max_tokens": 1 << 20, "min_tokens": 1 << 20}, {"stop_token_ids": {1, 2}},
    {"temperature": np.float32(0.5)}, {"max_tokens": np.int64(3)},
]  # fmt: skip


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_good_values(values):
    SamplingParams(**values)


def test_values_are_normalised():
    params = SamplingParams(top_k=-1, stop="end", stop_token_ids=[3], logit_bias={"7": 2, 8: -1.5})
    assert (params.top_k, params.stop, params.stop_token_ids) == (0, ("end",), (3,))
    assert params.logit_bias == {7: 2.0, 8: -1.5}
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-308, 9.9e-6])
def test_tiny_temperatures_are_greedy(temperature):
    assert SamplingParams(temperature=temperature).warp.temperature == 0.0
    assert SamplingParams(temperature=1e-5).warp.temperature == 1e-5


def test_mapping_is_copied():
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 5.0
    assert params.logit_bias == {1: 1.0}


def test_from_mapping():
    assert SamplingParams.from_mapping({"top_k": 3}) == SamplingParams(top_k=3)
    with pytest.raises(InvalidInput, match="temprature") as caught:
        SamplingParams.from_mapping({"temprature": 1})
    assert "temperature" in str(caught.value)


def test_check_vocabulary():
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(InvalidInput, match="logit_bias"):
        SamplingParams(logit_bias={10: 1.0}).check_vocabulary(10)
    with pytest.raises(InvalidInput, match="stop_token_ids"):
        SamplingParams(stop_token_ids=[10]).check_vocabulary(10)


def test_a_least_length_needs_a_token_that_ends_nothing():
    every = [*range(10), 3]
    SamplingParams(stop_token_ids=every).check_vocabulary(10)
    SamplingParams(stop_token_ids=every[1:], min_tokens=1).check_vocabulary(10)
    with pytest.raises(InvalidInput, match=r"min_tokens.*stop_token_ids"):
        SamplingParams(stop_token_ids=every, min_tokens=1).check_vocabulary(10)


def test_choices_have_seeds_of_their_own():
    params = SamplingParams(n=5, seed=11)
    choices = [params.for_choice(index) for index in range(5)]
    assert all(choice.n == 1 for choice in choices)
    assert choices[0].seed == 11
    assert len({choice.seed for choice in choices}) == 5
    assert choices == [params.for_choice(index) for index in range(5)]
    assert SamplingParams(n=3).for_choice(2).seed is None


def test_numpy_seeds_work():
    for seed in (np.int64(-5), np.uint64(MASK64), np.int32(7)):
        params = SamplingParams(seed=seed)
        same = SamplingParams(seed=int(seed))
        prompt = np.array([1], np.int32)
        assert Sampler(params, prompt, ()).noise_key(0) == Sampler(same, prompt, ()).noise_key(0)
        assert params.for_choice(2) == same.for_choice(2)


numbers = st.one_of(st.integers(), st.floats())
short = st.text(max_size=3)
anything = st.one_of(
    st.none(), st.booleans(), numbers, short, st.binary(max_size=3),
    st.lists(st.one_of(numbers, short), max_size=3),
    st.dictionaries(st.one_of(st.integers(), short), st.one_of(st.floats(), st.none()), max_size=3),
)  # fmt: skip
FIELDS = [*WHOLE, *REAL, "stop", "stop_token_ids", "logit_bias", "ignore_eos", "nonsense"]


@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4))
def test_hostile_mappings_are_refused_or_usable(values):
    try:
        params = SamplingParams.from_mapping(values)
    except InvalidInput as error:
        named = error.field.split("[")[0]
        assert named in values or named == "sampling parameter"
    else:
        Sampler(params, np.array([1, 2], np.int32), params.stop_token_ids[:0]).noise_key(1)
