"""Types for the layers that a forward pass runs: whole layers or halves of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Union

from paradecode.core.checks import is_whole

ATTENTION_WORK = 1 / 3
"""Share of attention in a layer's work: about 4 of 12 hidden_size^2 weights."""


class Half(NamedTuple):
    """One half of a layer: attention or MLP, with the norm before it and the residual sum after it.

    The other half does not run and leaves the residual stream unchanged. Only attention reads and
    writes keys and values.

    Attributes:
        layer: index of the layer; 0 is the first.
        part: ``attention`` or ``mlp``.
    """

    layer: int
    part: Literal["attention", "mlp"]


Layer = Union[int, Half]
"""A whole layer, by its index, or one half of a layer."""

Layers = tuple[Layer, ...]
"""Layers that a forward pass runs, in this order.

``l`` is the same computation as ``Half(l, "attention"), Half(l, "mlp")``.
"""


def halves(layer: Layer) -> tuple[int, bool, bool]:
    """Return the layer's index, whether its attention runs, and whether its MLP runs."""
    if isinstance(layer, Half):
        return layer.layer, layer.part == "attention", layer.part == "mlp"
    return layer, True, True


def is_layer(value: object) -> bool:
    """Return whether a value is a Layer; its index may be out of the model's range."""
    if isinstance(value, Half):
        part: object = value.part
        return is_whole(value.layer) and isinstance(part, str) and part in ("attention", "mlp")
    return is_whole(value)


def attending(layers: Iterable[Layer]) -> set[int]:
    """Return the indices of the layers whose attention runs, which store keys and values."""
    return {number for number, attends, _ in map(halves, layers) if attends}


def work(layers: Iterable[Layer]) -> float:
    """Return the approximate work of these layers; a whole layer counts as 1."""
    return sum(
        attends * ATTENTION_WORK + feeds * (1 - ATTENTION_WORK)
        for _, attends, feeds in map(halves, layers)
    )
