"""The layers of a model that a forward runs, as a whole or by halves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Union

from paradecode.core.checks import is_whole

ATTENTION_WORK = 1 / 3
"""Share of a layer's work: about 4 of its 12 hidden_size^2 weights; the MLP has the others."""


class Half(NamedTuple):
    """One half of a layer: its attention or its MLP, with the norm before and the sum behind it.

    The half that does not run leaves the residual stream unchanged. Only attention reads and writes
    keys and values.

    Attributes:
        layer: 0 is the first.
        part: ``attention`` or ``mlp``.
    """

    layer: int
    part: Literal["attention", "mlp"]


Layer = Union[int, Half]
"""A whole layer by its number, or a half of it."""

Layers = tuple[Layer, ...]
"""Layers that a forward runs, in this order. ``l`` is the same computation as
``Half(l, "attention"), Half(l, "mlp")``."""


def halves(layer: Layer) -> tuple[int, bool, bool]:
    """The layer's number, whether its attention runs, and whether its MLP does."""
    if isinstance(layer, Half):
        return layer.layer, layer.part == "attention", layer.part == "mlp"
    return layer, True, True


def is_layer(value: object) -> bool:
    """Whether a value is a Layer; its number may be out of the model's range."""
    if isinstance(value, Half):
        part: object = value.part
        return is_whole(value.layer) and isinstance(part, str) and part in ("attention", "mlp")
    return is_whole(value)


def attending(layers: Iterable[Layer]) -> set[int]:
    """The layers whose attention runs, and with it their keys and values."""
    return {number for number, attends, _ in map(halves, layers) if attends}


def work(layers: Iterable[Layer]) -> float:
    """The approximate amount of work, in whole layers."""
    return sum(
        attends * ATTENTION_WORK + feeds * (1 - ATTENTION_WORK)
        for _, attends, feeds in map(halves, layers)
    )
