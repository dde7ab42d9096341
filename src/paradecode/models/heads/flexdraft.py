"""FlexDraft: masks in the target's last layers, with attention of their own (arXiv 2605.20022)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, Masks
from paradecode.core.network import Network
from paradecode.models.config import ModelConfig
from paradecode.models.heads.layers import layers, text_of_target
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder
from paradecode.models.heads.parts import HeadParts

_UNUSED = ("mlp.", "input_layernorm.", "post_attention_layernorm.")
"""Stored by the published code, which computes with the target's."""


def flexdraft(parts: HeadParts) -> Head:
    """Masks pass copies of the target's last layers, whose projections of attention are the head's.

    They see the text as the target does: by keys and values that its own matrices make of the
    states that enter each layer.
    """
    file, config, t = parts.file, parts.config, parts.t
    if config.mixture is not None or config.sliding_window or config.attention != "causal":
        fix = "masks need a causal target without experts and without a sliding window"
        raise InvalidModel("model", config.name, fix)
    names = ("heads", "kv_heads", "head_dim")
    for name in names:
        if getattr(file, name) != getattr(config, name):
            raise InvalidModel(name, getattr(file, name), f"the target has {getattr(config, name)}")
    if file.taps[-1] != config.layers - 2:
        last = config.layers - 1
        raise InvalidModel("target_layer_ids", file.taps[-1] + 1, f"the last must be layer {last}")
    width = config.hidden_size
    own = {name: rows for name, rows in file.tensors.items() if name.startswith("layers.")}
    t.unread -= {"norm.weight", *own}
    own = {name: rows for name, rows in own.items() if name.split(".", 2)[2].startswith("self_")}
    whole = own | {
        f"layers.{number}.{theirs}": parts.target(f"layers.{tap + 1}.{ours}")
        for number, tap in enumerate(file.taps) for theirs, ours in _around(parts)
    }  # fmt: skip
    merged = replace(file, tensors=whole, rope=config.rope, epsilon=config.norm_eps)
    held = HeadTensors(merged)
    first = NetworkBuilder(token=0)
    into = first.add("lookup", "token", tensor=t("mask_embedding", width).reshape(1, -1))
    blocks = layers(merged, held, first, into, into, width)
    if len(blocks) != len(file.taps):
        raise InvalidModel("num_hidden_layers", len(blocks), f"{len(file.taps)} layers are named")
    if held.unread:
        raise InvalidModel(min(held.unread), "tensor", "no flexdraft head has it")
    blocks = tuple(
        replace(block, text=text, text_norm=norm, part=number)
        for number, (block, (text, norm)) in enumerate(
            zip(blocks, (text_of_target(parts, tap + 1) for tap in file.taps))
        )
    )
    out, bias = NetworkBuilder(state=width), None
    rows, ids = parts.kept("lm_head.weight", width)
    out.linear(out.norm("state", parts.target("norm"), config.norm_eps), rows)
    if "anchor_bias_mlp.0.weight" in t:
        bias = _calibration(parts, ids, len(rows))
    enter = NetworkBuilder(features=width * len(blocks))
    enter.same("features", width * len(blocks))
    masks = Masks(file.block_size, 0, 1, bias, blind=True)
    return Head("flexdraft", file.taps, width, enter.network(), blocks, (out.network(),),
                to_target=ids, masks=masks)  # fmt: skip


def own_attention(config: ModelConfig) -> list[tuple[str, str]]:
    """The target's names of what masks have of their own in a layer -> the head's."""
    names = [(part, f"{part}_proj.weight") for part in "qkvo"]
    if config.qkv_bias:
        names += [(f"{part}.bias", f"{part}_proj.bias") for part in "qkv"]
    if config.output_bias:
        names.append(("o.bias", "o_proj.bias"))
    if config.qk_norm:
        names += [(f"{part}_norm", f"{part}_norm.weight") for part in "qk"]
    return names


def _around(parts: HeadParts) -> list[tuple[str, str]]:
    """Names of a head's layer -> the target's, of what is not of its attention."""
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
    names |= {f"mlp.{part}_proj": part for part in ("gate", "up", "down")}
    made = [(f"{theirs}.weight", ours) for theirs, ours in names.items()]
    if parts.config.mlp_bias:
        made += [(f"mlp.{part}_proj.bias", f"{part}.bias") for part in ("gate", "up", "down")]
    return made


def _calibration(parts: HeadParts, ids: NDArray[np.int32] | None, guessed: int) -> Network:
    """What the last token, once it is known, adds to the logits of all masks."""
    t, width, name = parts.t, parts.config.hidden_size, "anchor_bias_mlp"
    steps = NetworkBuilder(token=0, state=width)
    state = steps.norm("state", parts.target("norm"), parts.config.norm_eps)
    both = steps.add("join", parts.embedded(steps), state)
    rank = len(t(f"{name}.0.weight", -1, 2 * width))
    inner = steps.linear(both, t(f"{name}.0.weight", rank, 2 * width), t(f"{name}.0.bias", rank))
    rows, bias = t(f"{name}.2.weight", -1, rank), t(f"{name}.2.bias", -1)
    if len(rows) != len(bias) or len(rows) < guessed:
        fix = f"it must have a row for each of {guessed} tokens, and {name}.2.bias as many numbers"
        raise InvalidModel(f"{name}.2.weight", rows.shape, fix)
    if len(rows) > guessed:
        rows, bias = (rows[:guessed], bias[:guessed]) if ids is None else (rows[ids], bias[ids])
    steps.linear(steps.add("silu", inner), rows, bias)
    return steps.network()
