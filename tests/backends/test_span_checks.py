"""A span that is out of range is refused with the field's name, and nothing is stored."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from house import numbers
from hypothesis import given
from naive import random_weights, tiny_config

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend, Span, StatePages, WindowPages
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
from spans import CAPACITY, damaged
from tiers import examples

CONFIG = tiny_config()
PAGES = 4


@pytest.fixture(scope="module", params=["torch", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Give a backend with nine rows stored in the pages of the valid span."""
    if request.param == "torch":
        pytest.importorskip("torch")
    dtype = "fp64" if request.param == "torch" else "q4"
    opened = open_backend(request.param, CONFIG, random_weights(CONFIG), dtype=dtype, threads=1)
    opened.reserve(PAGES)
    at = np.arange(9, dtype=np.int32)
    opened.forward([Span(ints(3, 1), at, at, at, 0, at[:0])])
    return opened


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def good() -> Span:
    """Return a valid span: three rows after five cached slots and two tail slots."""
    return Span(
        pages=ints(3, 1), tokens=ints(1, 2, 3), positions=ints(7, 8, 8), slots=ints(7, 8, -1),
        context=5, logits=ints(0, 2), tail=ints(5, 6), tail_positions=ints(5, 6),
        mask=np.array([[1, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 1]], bool), hidden=(0, 2),
    )  # fmt: skip


D = CONFIG.hidden_size
BAD = [
    ("pages", ints(3, PAGES)), ("pages", ints(-1, 1)), ("pages", np.zeros((1, 2), np.int32)),
    ("pages", np.array([0.0, 1.0])),
    ("positions", ints(7, 8, -1)), ("positions", np.array(3)),
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
    ("mask", np.array(True)),
    ("hidden", (CONFIG.layers,)), ("hidden", (-1,)),
    ("layers", (CONFIG.layers,)), ("layers", (0, -1)),
    ("embeddings", np.zeros((3, D + 1), np.float32)), ("embeddings", np.zeros((4, D), np.float32)),
    ("embeddings", np.zeros(D, np.float32)), ("embeddings", np.array(0.0, np.float32)),
    ("windows", {0: WindowPages(1, ints(1))}), ("windows", {0: WindowPages(-1, ints(3, 1, 2))}),
    ("windows", {0: WindowPages(0, ints(3, PAGES))}),
    ("states", StatePages(WindowPages(0, ints(0)), 0, -1)),
]  # fmt: skip


LAYERS = (
    (0, CONFIG.layers), (-1,), (Half(CONFIG.layers, "mlp"),), (Half(-1, "attention"),),
    (Half(0, "both"),), (Half(0, None),), (Half("0", "mlp"),), (Half(True, "mlp"),), ((0, "mlp"),),
    (True,), (0.0,), ("0",), (None,), (1 << 80,), ([0],), "0", 0, Half(0, "mlp"), {0},
    np.array([0, 1]),
)  # fmt: skip
EVERY: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name, value in BAD),
    *(("layers", {"layers": value, "hidden": ()}) for value in LAYERS),
    ("mask", {"mask": np.ones((3, 5), np.float32)}), ("hidden", {"hidden": (2,), "layers": (0, 1)}),
    *(("hidden", {"hidden": (each,)}) for each in (0.0, Half(0, "mlp"), True, 1 << 80)),
]  # fmt: skip
CORE: list[tuple[str, dict[str, Any]]] = [
    *(("context", {"context": value}) for value in (1.5, True, "1", None, [1], 1 << 80)),
    *(("attention", {"attention": value}) for value in ((0,), np.zeros(1, np.int64))),
    ("tokens", {"tokens": np.array([1, 2, 3])}), ("embeddings", {"embeddings": np.zeros((3, D))}),
    ("slots", {"slots": ints(5, 8, -1)}),
    ("slots", {"slots": ints(20, 21, 22), "visible": ints(22)}),
    ("resume", {"resume": np.zeros((2, D), np.float32)}), ("mask", {"mask": "all"}),
    ("resume", dict.fromkeys(("resume", "embeddings"), np.zeros((3, D), np.float32))),
    ("layers", {"layers": (0,) * 20000, "hidden": ()}), ("hidden", {"hidden": 0}),
    *(("windows", {"windows": value}) for value in (
        3, {"0": (0, ints(3, 1))}, {0: ints(3, 1)}, {0: (0.0, ints(3, 1))}, {0: (0, np.zeros(2))},
        {0: (1 << 70, ints(3))}, {0: (1 << 28, ints(3))},
    )),
]  # fmt: skip
"""Further values that the core refuses, because it converts nothing."""


def stored(backend: Backend) -> np.ndarray:
    """Return the logits of a row that sees everything stored."""
    last = Span(ints(3, 1), ints(4), ints(9), ints(-1), 9, ints(0))
    return numbers(backend.forward([last])[0].logits)


def check_refused(backend: Backend, field: str, changes: dict[str, Any]) -> None:
    first = replace(good(), pages=ints(0, 2))
    if "layers" in changes:
        first = replace(first, layers=changes["layers"], hidden=())
    before = stored(backend)
    with pytest.raises(InvalidInput) as caught:
        backend.forward([first, replace(good(), **changes)])
    assert caught.value.field.endswith(field)
    assert (stored(backend) == before).all()


def test_the_good_span_is_good(backend):
    result = backend.forward([replace(good(), pages=ints(0, 2)), good()])[1]
    assert result.logits.shape == (2, CONFIG.vocab_size)
    assert set(result.hidden) == {0, 2}


@pytest.mark.parametrize("place", range(len(EVERY)), ids=lambda place: f"{place}-{EVERY[place][0]}")
def test_bad_fields_are_named_and_nothing_is_stored(backend, place):
    check_refused(backend, *EVERY[place])


@pytest.mark.parametrize("place", range(len(CORE)), ids=lambda place: f"{place}-{CORE[place][0]}")
@pytest.mark.parametrize("backend", ["native"], indirect=True)
def test_the_core_converts_nothing(backend, place):
    check_refused(backend, *CORE[place])


def test_tokens_are_not_read_where_embeddings_are_given(backend):
    span = replace(good(), tokens=ints(), embeddings=np.ones((3, D), np.float32))
    assert backend.forward([span])[0].logits.shape[0] == 2


def test_spans_and_their_layers(backend):
    with pytest.raises(InvalidInput, match="spans"):
        backend.forward([])
    with pytest.raises(InvalidInput, match="layers"):
        backend.forward([good(), replace(good(), layers=(0,), hidden=())])


def test_hidden_states_are_of_layers_that_run(backend):
    span = replace(good(), layers=(1, Half(2, "mlp")), hidden=(2,))
    assert set(backend.forward([span])[0].hidden) == {2}
    for hidden in ((0,), (Half(2, "mlp"),), (2.0,), (True,), 2, None):
        with pytest.raises(InvalidInput, match="hidden"):
            backend.forward([replace(span, hidden=hidden)])


def test_every_array_field_is_covered():
    assert {name for name, _ in BAD} == {f.name for f in fields(Span)} - {"resume", "denoise"}


@examples(600)
@given(span=damaged(good(), CONFIG))
def test_any_corruption_is_refused_or_runs(backend, span: Span):
    try:
        result = backend.forward([span])[0]
    except InvalidInput as error:
        assert any(f.name in error.field for f in fields(Span))  # noqa: PT017
    else:
        assert result.logits.shape == (len(span.logits), CONFIG.vocab_size)
