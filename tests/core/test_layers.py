"""Layers and halves of layers, and which tokens of a forward can be split over several forwards."""

from dataclasses import fields, replace

import numpy as np
import pytest

from paradecode.core.decoder import Forward
from paradecode.core.layers import Half, attending, halves, is_layer, work

SOME = (0, Half(1, "mlp"), Half(2, "attention"), 4)


def test_what_runs():
    assert list(map(halves, SOME)) == [
        (0, True, True), (1, False, True), (2, True, False), (4, True, True),
    ]  # fmt: skip
    assert attending(SOME) == {0, 2, 4}
    assert attending([Half(1, "mlp")]) == set()


def test_the_halves_of_a_layer_are_the_work_of_one():
    assert work(range(30)) == 30
    assert work([Half(0, "attention"), Half(0, "mlp")]) == 1
    assert 0 < work([Half(0, "attention")]) < work([Half(0, "mlp")])
    assert work([]) == 0


@pytest.mark.parametrize(
    "value", [0, -1, 1 << 80, np.int64(3), Half(2, "mlp"), Half(9, "attention")]
)
def test_layers_of_some_model(value):
    assert is_layer(value)


HOSTILE = [
    None, True, np.True_, 1.0, "1", (1, "mlp"), [1], np.array(1.0), np.array([1, 2]), object(),
    Half(1, "both"), Half(1, "MLP"), Half(1, None), Half(1, ["mlp"]),
    Half(1, np.array(["mlp", "x"])),
    Half("1", "mlp"), Half(True, "mlp"), Half(None, "attention"), Half(Half(1, "mlp"), "mlp"),
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_what_is_no_layer(value):
    assert not is_layer(value)


@pytest.mark.parametrize("name", [field.name for field in fields(Forward)])
def test_only_tokens_that_continue_the_text_can_be_spread(name):
    """A request that sets any other field keeps its tokens together, including new fields."""
    forward = replace(Forward(np.arange(3, dtype=np.int32)), **{name: object()})
    harmless = {"tokens", "tree", "under", "places", "given", "hidden", "layers", "model", "on"}
    assert forward.sequential == (name in harmless)
