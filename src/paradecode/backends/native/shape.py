"""The record of a model's shape that the core is made from (csrc/python_shape.cpp)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.models.parts import Attention, Feed, Layer, StatePart
from paradecode.models.recurrence import Convolution

_OWN = ("vocab_size", "hidden_size", "context_length", "norm_eps", "norm_kind", "norm_bias",
        "embed_factor", "embed_norm", "positions", "token_width", "token_rows", "head_bias",
        "logit_factor", "softcap")  # fmt: skip


def shape_record(config: ModelConfig) -> dict[str, Any]:
    """Return the facts of a model; layers name their kinds of attention and MLP by number."""
    attentions: list[dict[str, Any]] = []
    feeds: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    layers = [_layer(layer, attentions, states, feeds) for layer in config.stack]
    if not attentions:  # The core plans a forward by what rows see.
        attentions.append(_attention(Attention(1, 1, 1)))
    own = {name: getattr(config, name) for name in _OWN}
    return own | {
        "outputs": config.said, "canvas": config.canvas_length > 0, "attentions": attentions,
        "states": states, "feeds": feeds, "layers": layers,
    }  # fmt: skip


def _layer(
    layer: Layer, attentions: list[dict[str, Any]], states: list[dict[str, Any]],
    feeds: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    attention, feed, reader = layer.attention, layer.feed, layer.token_input
    return {
        "attention": -1 if attention is None else _number(_attention(attention), attentions),
        "keys_of": -1 if attention is None else attention.keys_of,
        "states": [_number(_state(part), states) for part in layer.states],
        "feed": -1 if feed is None else _number(_feed(feed), feeds),
        "reads_token": reader is not None,
        "token_activation": "silu" if reader is None else reader.activation,
        "groups": [*map(len, layer.groups)], "ladder": layer.ladder, "scaled": layer.scaled,
    }  # fmt: skip


def _number(record: dict[str, Any], known: list[dict[str, Any]]) -> int:
    """Return where a record is among those known, and add it if it is new."""
    if record not in known:
        known.append(record)
    return known.index(record)


def _attention(part: Attention) -> dict[str, Any]:
    rope, left_out = part.rope, ("rope", "alibi", "keys_of")
    own = {each.name: getattr(part, each.name) for each in fields(part)
           if each.name not in left_out}  # fmt: skip
    return own | {
        "slopes": part.slopes() if part.alibi else [],
        "rope_factor": 1.0 if rope is None else rope.attention_factor,
        "inverse_frequencies": [] if rope is None else rope.inverse_frequencies().tolist(),
    }


def _state(part: StatePart) -> dict[str, Any]:
    own = {each.name: getattr(part, each.name) for each in fields(part)}
    return own | {"heads": 0} if isinstance(part, Convolution) else own


def _feed(part: Feed) -> dict[str, Any]:
    own = {each.name: getattr(part, each.name) for each in fields(part)}
    return own | {"mixture": [] if part.mixture is None else [_mixture(part.mixture)]}


def _mixture(mixture: Mixture) -> dict[str, Any]:
    return {each.name: getattr(mixture, each.name) for each in fields(mixture)}
