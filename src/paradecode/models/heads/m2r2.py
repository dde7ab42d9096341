"""M2R2: a second residual stream beside the target's, which runs ahead of it (arXiv 2502.02040)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Array, Block, Head
from paradecode.models.heads.flexdraft import around_attention, check_layers, own_attention
from paradecode.models.heads.layers import HalfSplit, after_attention, keys_of_target
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder
from paradecode.models.heads.parts import HeadParts


def m2r2(parts: HeadParts) -> Head:
    """Build a head whose stream runs through layers of the target; the file adds a little to each.

    A state holds the inputs of all these layers in the target, side by side. The stream comes first
    in it, and begins as the input of the first layer. In a layer, the queries are the stream's own;
    the target's matrices compute keys and values again from the layer's input. This is why the
    state holds the inputs of all layers.
    """
    file, config, width = parts.file, parts.config, parts.config.hidden_size
    check_layers(config)
    if file.taps[-1] > config.layers - 2:
        fix = f"the last layer that the stream can pass is {config.layers - 1}"
        raise InvalidModel("stream_layers", file.taps[-1] + 1, fix)
    wide = len(file.taps) * width
    enter, out = NetworkBuilder(features=wide), NetworkBuilder(state=wide)
    enter.same("features", wide)
    blocks = tuple(_block(parts, number, tap + 1) for number, tap in enumerate(file.taps))
    rows, ids = parts.kept("lm_head.weight", width)
    stream = out.part("state", 0, width)
    out.linear(out.norm(stream, parts.final_gain(), config.norm_eps), rows)
    return Head("m2r2", file.taps, wide, enter.network(), blocks, (out.network(),), to_target=ids)


def _block(parts: HeadParts, number: int, layer: int) -> Block:
    """Build layer ``number`` of the stream, from 0, which uses the target's layer ``layer``."""
    config, width, name = parts.config, parts.config.hidden_size, f"layers.{number}."
    wide, asked = len(parts.file.taps) * width, config.heads * config.head_dim
    own = replace(parts.file, tensors=_layer(parts, number, layer), epsilon=config.norm_eps)
    t, turn, q_norm = HeadTensors(own), HalfSplit.of(config.rope, config.head_dim), None
    if config.qk_norm:  # The norm takes what the rotation multiplies by.
        gain = t(f"{name}self_attn.q_norm.weight", config.head_dim)
        q_norm = gain[turn.order] * turn.factor
        turn = replace(turn, factor=np.ones_like(turn.factor))
    inputs = {"state": wide, "token": 0} if number == 0 else {"state": wide}
    before, after = NetworkBuilder(**inputs), NetworkBuilder(mixed=asked, rest=wide)
    x = before.norm(
        before.part("state", 0, width), t(f"{name}input_layernorm.weight", width), config.norm_eps
    )
    queries = before.linear(x, *turn.rows(*t.projection(f"{name}self_attn.q_proj", asked, width)))
    slow = before.part("state", number * width, width)
    keys, values, k_norm = keys_of_target(parts, layer, before, slow)
    before.add("join", queries, keys, values, "state")
    stream = after_attention(own, t, name, after, "mixed", width, after.part("rest", 0, width))
    if wide > width:
        after.add("join", stream, after.part("rest", width, wide - width))
    return Block(
        before.network(), after.network(), config.heads, config.kv_heads, config.head_dim,
        turn.frequencies, config.norm_eps, q_norm, k_norm,
    )  # fmt: skip


def _layer(parts: HeadParts, number: int, layer: int) -> dict[str, Array]:
    """Return a target layer's tensors, without keys and values, under a head's names.

    The head's additions are included: a matrix of low rank for the queries, and units for the MLP.
    """
    t, config, width, name = parts.t, parts.config, parts.config.hidden_size, f"layers.{number}."
    names = [(ours, f"self_attn.{theirs}") for ours, theirs in own_attention(config)
             if ours[0] not in "kv"]  # fmt: skip
    made, shapes = dict[str, Array](), config.tensors()
    for ours, theirs in [*names, *around_attention(config)]:
        key = f"layers.{layer}.{ours}"
        made[f"{name}{theirs}"] = parts.of_target(key, *shapes[key])
    start, query = f"stream.{number}.", f"{name}self_attn.q_proj.weight"
    down = t(f"{start}query.down.weight", -1, width)
    made[query] = made[query] + t(f"{start}query.up.weight", len(made[query]), len(down)) @ down
    more = len(t(f"{start}mlp.gate_proj.weight", -1, width))
    shape = {"gate": (more, width), "up": (more, width), "down": (width, more)}
    for axis, part in ((0, "gate"), (0, "up"), (1, "down")):
        key = f"mlp.{part}_proj.weight"
        both = made[f"{name}{key}"], t(f"{start}{key}", *shape[part])
        made[f"{name}{key}"] = np.concatenate(both, axis=axis)
        bias = f"{name}mlp.{part}_proj.bias"
        if bias in made and part != "down":
            made[bias] = np.append(made[bias], np.zeros(more, np.float32))
    return made
