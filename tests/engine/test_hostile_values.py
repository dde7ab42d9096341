"""Any value may come from outside: it is either understood, or refused with an error of ours."""

from __future__ import annotations

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.specs import methods, parse
from tiers import examples

NAMES = st.sampled_from(sorted(vars(SamplingParams()))) | st.text(max_size=5)
EDGES = [10**400, -(10**400), 1 << 63, 2**64 - 1, math.nan, math.inf, -0.0]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(),
    st.text(max_size=8), st.sampled_from(EDGES),
)  # fmt: skip
WILD = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@examples(400)
@given(st.dictionaries(NAMES, WILD, max_size=3))
def test_sampling_parameters(values: dict[str, object]) -> None:
    with contextlib.suppress(InvalidInput):
        params = SamplingParams.from_mapping(values)
        assert params.max_tokens >= max(1, params.min_tokens)
        assert math.isfinite(params.temperature)
        hash(params.stop + params.stop_token_ids)  # type: ignore[operator]
        params.for_choice(1)
        with contextlib.suppress(InvalidInput):
            params.check_vocabulary(29)


SETTINGS = st.sampled_from(sorted({p.name for m in methods().values() for p in m.parameters}))
ARGUMENT = st.builds(
    lambda name, value: f"{name}={value}",
    SETTINGS | st.text(max_size=6),
    WILD.map(repr) | st.text(max_size=6) | st.sampled_from(["{[]: 1}", "-'a'", "1+2j", "9" * 500]),
)
SPEC = st.builds(
    lambda name, arguments, end: f"{name}({','.join(arguments)}{end}",
    st.sampled_from([*methods(), "ngram", ""]) | st.text(max_size=6),
    st.lists(ARGUMENT, max_size=3),
    st.sampled_from([")", "", "))", ")(", ") # x", "**{})", "*a)"]),
)


@examples(400)
@given(SPEC | st.text(max_size=40) | st.dictionaries(st.text(max_size=4), WILD).map(json.dumps))
def test_spec_strings(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        spec = parse(text)
        spec()
        assert str(parse(str(spec))) == str(spec)


@examples(400)
@given(
    st.dictionaries(SETTINGS | st.text(max_size=4), WILD, max_size=2),
    st.sampled_from([*methods(), "ngram", "none", "?"]) | WILD,
)
def test_spec_mappings(values: dict[str, object], method: object) -> None:
    with contextlib.suppress(InvalidInput):
        parse({**values, "method": method})()


@pytest.mark.parametrize("spec", ["(" * 3000, "a" * 5000, "{" * 5000, "greedy(x=" + "[" * 4000])
def test_long_and_deep_specs(spec: str) -> None:
    with pytest.raises(InvalidInput):
        parse(spec)


INTS = st.integers(-3, 12) | st.integers(-(2**31), 2**31 - 1)


@examples(400)
@given(
    st.lists(INTS, max_size=12),
    st.lists(st.integers(-2, 11), max_size=12),
    st.none() | st.lists(st.floats(0, 1, width=32), max_size=12),
)
def test_token_trees(tokens: list[int], parents: list[int], estimates: list[float] | None) -> None:
    extra = () if estimates is None else (np.array(estimates, np.float32),)
    try:
        tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32), *extra)
    except DecoderError:
        return
    assert len(tree) == len(tokens) == len(parents)
    for node, parent in enumerate(parents):
        assert ROOT <= parent < node
        assert tree.depths[node] == (1 if parent == ROOT else tree.depths[parent] + 1)
        found = tree.child(parent, tokens[node])
        assert found is not None
        assert found <= node
        assert tree.visibility[node].sum() == tree.depths[node]
    for count in (0, 1, 3):
        best = tree.best(count)
        assert len(best) <= max(count, 0)
        assert len(tree.clip(count)) == int((tree.depths <= count).sum())


@examples(200)
@given(st.integers(1, 10), st.randoms(use_true_random=False))
def test_valid_trees_are_accepted(count: int, random) -> None:
    parents = [random.randrange(-1, node) if node else -1 for node in range(count)]
    tree = TokenTree(np.zeros(count, np.int32), np.array(parents))
    assert tree.select(np.ones(count, bool)).parents.tolist() == parents
