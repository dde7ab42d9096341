"""FlexDraft: masks in the target's last layers, with separate attention (arXiv 2605.20022)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Array, Head, Masks, Network
from paradecode.models.config import ModelConfig
from paradecode.models.heads.layers import layers, text_of_target
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder
from paradecode.models.heads.parts import HeadParts


def flexdraft(parts: HeadParts) -> Head:
    """Build a head whose masks run through copies of the target's last layers.

    The attention projections of these copies are the head's. The masks see committed tokens like
    the target does: through keys and values that the target's matrices make from the states that
    enter each layer.
    """
    file, config, t = parts.file, parts.config, parts.t
    check_layers(config)
    names = ("heads", "kv_heads", "head_dim")
    for name in names:
        if getattr(file, name) != getattr(config, name):
            raise InvalidModel(name, getattr(file, name), f"the target has {getattr(config, name)}")
    if file.taps[-1] != config.layers - 2:
        last = config.layers - 1
        raise InvalidModel("target_layer_ids", file.taps[-1] + 1, f"the last must be layer {last}")
    width = config.hidden_size
    whole: dict[str, Array] = {}
    for number, tap in enumerate(file.taps):
        for ours, theirs in own_attention(config):
            name = f"layers.{number}.self_attn.{theirs}"
            whole[name] = t(name, *config.tensors()[f"layers.{tap + 1}.{ours}"])
        for ours, theirs in around_attention(config):
            name = f"layers.{number}.{theirs}"
            whole[name] = parts.target(f"layers.{tap + 1}.{ours}")
            t.maybe(name, *whole[name].shape)  # Published code stores it, and uses the target's.
    t.maybe("norm.weight", width)  # As these.
    merged = replace(file, tensors=whole, rope=config.rope, epsilon=config.norm_eps)
    first = NetworkBuilder(token=0)
    into = first.add("lookup", "token", tensor=t("mask_embedding", width).reshape(1, -1))
    blocks = layers(merged, HeadTensors(merged), first, into, into, width)
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
        bias = _calibration(parts, np.arange(len(rows)) if ids is None else ids)
    enter = NetworkBuilder(features=width * len(blocks))
    enter.same("features", width * len(blocks))
    masks = Masks(file.block_size, 0, 1, bias, blind=True)
    return Head("flexdraft", file.taps, width, enter.network(), blocks, (out.network(),),
                to_target=ids, masks=masks)  # fmt: skip


def check_layers(config: ModelConfig) -> None:
    """Raise InvalidModel unless a head can hold layers of this target."""
    plain = config.plain and config.mixture is None and not config.sliding_window
    if not plain or config.attention != "causal":
        fix = "the head needs a causal target without experts and without a sliding window"
        raise InvalidModel("model", config.name, fix)


def own_attention(config: ModelConfig) -> list[tuple[str, str]]:
    """Return (target's name, head's name) of the attention tensors that masks have of their own."""
    names = [(part, f"{part}_proj.weight") for part in "qkvo"]
    if config.qkv_bias:
        names += [(f"{part}.bias", f"{part}_proj.bias") for part in "qkv"]
    if config.output_bias:
        names.append(("o.bias", "o_proj.bias"))
    if config.qk_norm:
        names += [(f"{part}_norm", f"{part}_norm.weight") for part in "qk"]
    return names


def around_attention(config: ModelConfig) -> list[tuple[str, str]]:
    """Return (target's name, head's name) of a layer's tensors outside of its attention."""
    names = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    names |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    made = [(ours, f"{theirs}.weight") for ours, theirs in names.items()]
    if config.mlp_bias:
        made += [(f"{part}.bias", f"mlp.{part}_proj.bias") for part in ("gate", "up", "down")]
    return made


def _calibration(parts: HeadParts, ids: NDArray[np.integer]) -> Network:
    """Build the network by which the last known token changes the logits of all masks.

    Its result is added to the logits. The file may have a row for each token of the target, or of
    its own LM head.

    Args:
        ids: the target's ids of the tokens that may be guessed.
    """
    t, width, name = parts.t, parts.config.hidden_size, "anchor_bias_mlp"
    steps = NetworkBuilder(token=0, state=width)
    state = steps.norm("state", parts.target("norm"), parts.config.norm_eps)
    both = steps.add("join", parts.embedded(steps), state)
    rank = len(t(f"{name}.0.weight", -1, 2 * width))
    inner = steps.linear(both, t(f"{name}.0.weight", rank, 2 * width), t(f"{name}.0.bias", rank))
    rows, bias = t(f"{name}.2.weight", -1, rank), t(f"{name}.2.bias", -1)
    known = parts.config.vocab_size
    whole = replace(parts, vocabulary=0)
    own = known if len(rows) == known else len(whole.kept("lm_head.weight", width)[0])
    if len(rows) != len(bias) or len(rows) != own:
        fix = f"it must have {known} rows, or {own} as its LM head, and {name}.2.bias as many"
        raise InvalidModel(f"{name}.2.weight", rows.shape, fix)
    which = ids if len(rows) == known else np.arange(len(ids))
    steps.linear(steps.add("silu", inner), rows[which], bias[which])
    return steps.network()
