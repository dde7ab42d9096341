"""Layers that mean nothing are refused by the name of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from paradecode.core.errors import InvalidModel
from paradecode.models.parts import Attention, Feed, Layer
from paradecode.models.recurrence import Convolution, Recurrence

ATTENTION, FEED = Attention(2, 1, 8), Feed(16)
SHARING = replace(FEED, norm="shared")


@pytest.mark.parametrize(("made", "named"), [
    (lambda: Layer(()), "parts"), (lambda: Layer(((), FEED)), "parts"),
    (lambda: Layer((FEED, ATTENTION)), "parts"),
    (lambda: Layer(((ATTENTION, FEED), FEED)), "parts"),
    (lambda: Layer(((ATTENTION, FEED),), ladder=True), "ladder"),
    (lambda: Layer((ATTENTION, SHARING)), "norm"), (lambda: Layer((SHARING,)), "norm"),
    (lambda: Layer(((replace(ATTENTION, norm="after"), SHARING),)), "norm"),
    (lambda: Layer(((Convolution(3), SHARING),)), "norm"),
    (lambda: Recurrence(2, 1, 8, 8, factors=(1.0,) * 5), "factors"),
    (lambda: Recurrence(2, 1, 8, 8, factors=(1.0,) * 5 + (0.0,)), "factors"),
    (lambda: Feed(16, gated=False, gate_factor=2.0), "gate_factor"),
    (lambda: replace(ATTENTION, out_factor=float("nan")), "out_factor"),
])  # fmt: skip
def test_contradicting_parts_are_refused(made: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidModel, match=named):
        made()


def test_groups_hold_the_parts_in_order() -> None:
    mixer = Convolution(3, norm="shared")
    layer = Layer(((ATTENTION, mixer), FEED))
    assert layer.groups == ((ATTENTION, mixer), (FEED,))
    assert layer.parts == (ATTENTION, mixer, FEED)
    assert layer.beside
    assert not Layer((ATTENTION, FEED)).beside
    assert Layer(((ATTENTION,), FEED)) == Layer((ATTENTION, FEED))
    assert {*layer.tensors(4, False, False)} >= {"attn_norm", "mlp_norm"}
    assert "conv_norm" not in layer.tensors(4, False, False)
