"""A span that is out of range is refused with the name of the field, and nothing is stored."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from naive import random_weights, tiny_config

from spans import CAPACITY, damaged

torch = pytest.importorskip("torch")

from paradecode.backends.interface import Span, check_spans  # noqa: E402
from paradecode.backends.torch.backend import TorchBackend  # noqa: E402
from paradecode.core.errors import InvalidInput  # noqa: E402
from paradecode.core.layers import Half  # noqa: E402
from tiers import examples  # noqa: E402

CONFIG = tiny_config()
PAGES = 4
BACKEND = TorchBackend(CONFIG, random_weights(CONFIG), dtype="fp64")
BACKEND.reserve(PAGES)
for cache in (*BACKEND.keys, *BACKEND.values):
    cache.fill_(0.5)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def good() -> Span:
    """Three rows behind five cached slots and two tail slots."""
    return Span(
        pages=ints(3, 1),
        tokens=ints(1, 2, 3),
        positions=ints(7, 8, 8),
        slots=ints(7, 8, -1),
        context=5,
        logits=ints(0, 2),
        tail=ints(5, 6),
        tail_positions=ints(5, 6),
        mask=np.array([[1, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 1]], bool),
        hidden=(0, 2),
    )


D = CONFIG.hidden_size
BAD = [
    ("pages", ints(3, PAGES)), ("pages", ints(-1, 1)), ("pages", np.zeros((1, 2), np.int32)),
    ("pages", np.array([0.0, 1.0])),
    ("positions", ints()), ("positions", ints(7, 8, -1)), ("positions", np.array(3)),
    ("positions", ints(7, 8, CONFIG.context_length)), ("positions", ints(7, 8, 9)[None]),
    ("positions", np.array([7.0, 8.0, 9.0])), ("positions", np.array([7, 8, 1 << 40])),
    ("tokens", ints(1, 2)), ("tokens", ints(1, 2, 3, 4)), ("tokens", ints(1, 2, -1)),
    ("tokens", ints(1, 2, CONFIG.vocab_size)), ("tokens", np.array([1.0, 2.0, 3.0])),
    ("tokens", np.array(["a", "b", "c"])),
    ("slots", ints(7, 8)), ("slots", ints(7, 8, CAPACITY)), ("slots", ints(7, 8, -2)),
    ("slots", ints(7, 8, 7)), ("slots", np.array([7.0, 8.0, 9.0])),
    ("context", -1), ("context", CAPACITY + 1),
    ("logits", ints(0, 3)), ("logits", ints(-1)), ("logits", np.array([0.5])),
    ("logits", np.array(1)),
    ("visible", ints(0, CAPACITY)), ("visible", ints(-1)), ("visible", np.zeros((2, 2), np.int32)),
    ("visible", np.array([True])),
    ("attention", ints(3)), ("attention", ints(0, -1)), ("attention", np.array([0.0])),
    ("attention", ints(0)[None]),
    ("tail", ints(5, CAPACITY)), ("tail", ints(-1, 5)), ("tail", np.array(5)),
    ("tail_positions", ints(5)), ("tail_positions", ints(5, CONFIG.context_length)),
    ("tail_positions", ints(5, -1)),
    ("mask", np.ones((3, 3), bool)), ("mask", np.ones((2, 5), bool)), ("mask", np.ones(5, bool)),
    ("mask", np.ones((3, 5), np.uint8)), ("mask", np.array(True)),
    ("hidden", (CONFIG.layers,)), ("hidden", (-1,)),
    ("layers", (CONFIG.layers,)), ("layers", (0, -1)),
    ("embeddings", np.zeros((3, D + 1), np.float32)), ("embeddings", np.zeros((4, D), np.float32)),
    ("embeddings", np.zeros(D, np.float32)), ("embeddings", np.array(0.0, np.float32)),
]  # fmt: skip


def test_the_good_span_is_good():
    check_spans(CONFIG, PAGES, [good()])
    result = BACKEND.forward([good(), good()])[1]
    assert result.logits.shape == (2, CONFIG.vocab_size)
    assert set(result.hidden) == {0, 2}


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda x: x if isinstance(x, str) else None)
def test_bad_fields_are_named_and_nothing_is_stored(name, value):
    span = replace(good(), **{name: value})
    before = [cache.clone() for cache in (*BACKEND.keys, *BACKEND.values)]
    with pytest.raises(InvalidInput) as caught:
        BACKEND.forward([good(), span])
    assert caught.value.field == name
    after = (*BACKEND.keys, *BACKEND.values)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_resume_has_the_shape_of_embeddings():
    with pytest.raises(InvalidInput):
        BACKEND.forward([replace(good(), resume=np.zeros((3, D - 1), np.float32))])


def test_tokens_are_not_read_where_embeddings_are_given():
    span = replace(good(), tokens=ints(), embeddings=np.ones((3, D), np.float32))
    assert BACKEND.forward([span])[0].logits.shape[0] == 2


def test_spans_and_their_layers():
    with pytest.raises(InvalidInput, match="spans"):
        BACKEND.forward([])
    with pytest.raises(InvalidInput, match="layers"):
        BACKEND.forward([good(), replace(good(), layers=(0,), hidden=())])


@pytest.mark.parametrize(
    "layers",
    [
        (0, CONFIG.layers), (-1,), (Half(CONFIG.layers, "mlp"),), (Half(-1, "attention"),),
        (Half(0, "both"),), (Half(0, None),), (Half("0", "mlp"),), ((0, "mlp"),), (True,), (0.0,),
        ("0",), (None,), (1 << 80,), ([0],), "0", 0, Half(0, "mlp"), {0}, np.array([0, 1]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_are_no_layers_is_refused_and_nothing_is_stored(layers):
    before = [cache.clone() for cache in (*BACKEND.keys, *BACKEND.values)]
    with pytest.raises(InvalidInput) as caught:
        BACKEND.forward([replace(good(), layers=layers, hidden=())])
    assert caught.value.field == "layers"
    after = (*BACKEND.keys, *BACKEND.values)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_hidden_states_are_of_layers_that_run():
    span = replace(good(), layers=(1, Half(2, "mlp")), hidden=(2,))
    assert set(BACKEND.forward([span])[0].hidden) == {2}
    for hidden in ((0,), (Half(2, "mlp"),), (2.0,), (True,), 2, None):
        with pytest.raises(InvalidInput, match="hidden"):
            BACKEND.forward([replace(span, hidden=hidden)])


def test_every_array_field_is_covered():
    assert {name for name, _ in BAD} == {f.name for f in fields(Span)} - {"resume", "denoise"}


@examples(400)
@given(span=damaged(good(), CONFIG))
def test_any_corruption_is_refused_or_runs(span: Span):
    try:
        result = BACKEND.forward([span])[0]
    except InvalidInput as error:
        assert error.field in {f.name for f in fields(Span)}  # noqa: PT017
    else:
        assert result.logits.shape == (len(span.logits), CONFIG.vocab_size)
