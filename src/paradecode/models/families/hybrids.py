"""Families whose layers keep a state: LFM2, Mamba-2, Granite 4 hybrid."""

from __future__ import annotations

from dataclasses import replace

from paradecode.core.errors import InvalidModel
from paradecode.models.families.family import (
    LLAMA_NAMES,
    LLAMA_OUTSIDE,
    Family,
    Fields,
    attention_of,
    common,
    feed_of,
    head_sizes,
    layers_of,
)  # fmt: skip
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.parts import Feed, Layer
from paradecode.models.recurrence import Convolution, Recurrence


def _attends(values: Metadata, state: str) -> list[bool]:
    """Return for each layer whether it attends; the others have the kind ``state``."""
    kinds, count = values.get("layer_types"), len(layers_of(values))
    known = {"full_attention": True, "attention": True, state: False, "linear_attention": False}
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {*known}:
        raise InvalidModel("layer_types", kinds, f"give {count} of full_attention, {state}")
    return [known[kind] for kind in kinds]


def _lfm2(values: Metadata) -> Fields:
    """LFM2: short gated convolutions, and a few layers with attention."""
    rope, size = rope_of(values, head_sizes(values)[2]), values.whole("intermediate_size")
    if values.flag("block_auto_adjust_ff_dim"):
        step = values.whole("block_multiple_of", 256, 1)
        size = int(values.number("block_ffn_dim_multiplier", 1.0) * (2 * size // 3))
        size = -(-size // step) * step
    feed, bias = Feed(size), values.flag("conv_bias")
    mixer = Convolution(values.whole("conv_L_cache", 3, 2, 16), bias=bias, tap_bias=bias)
    attention = attention_of(values, rope, qk_norm="head")
    stack = tuple(
        Layer((attention if attends else mixer, feed)) for attends in _attends(values, "conv")
    )
    return common(values, stack, norm_eps=values.number("norm_eps", 1e-5))


def _mamba2_part(values: Metadata, before: str, size: str, groups: str) -> Recurrence:
    """Return the heads of Mamba-2 (arXiv 2405.21060).

    Args:
        before: what stands before the names of its facts.
        size, groups: names of the number of key channels, and of the number of groups.
    """
    heads = values.whole(f"{before}n_heads" if before else "num_heads", None, 1)
    shared = values.whole(groups, 1, 1)
    least, most = _bounds(values.get("time_step_limit"))
    return Recurrence(
        heads, shared, values.whole(size, None, 1),
        values.whole(f"{before}d_head" if before else "head_dim", None, 1),
        width=values.whole(f"{before}d_conv" if before else "conv_kernel", 4, 2, 16),
        tap_bias=values.flag(f"{before}conv_bias" if before else "use_conv_bias"),
        skip=True, gate="before", out_norm="groups", norm_groups=shared, least_step=least,
        most_step=most,
    )  # fmt: skip


def _bounds(said: object) -> tuple[float, float]:
    """Return the bounds of a step; transformers writes infinity as ``{"__float__": "Infinity"}``."""
    pair = said if isinstance(said, (list, tuple)) and len(said) == 2 else [0.0, None]
    least, most = (
        1e30 if each is None or each == {"__float__": "Infinity"} else each for each in pair
    )
    if not all(isinstance(each, (int, float)) for each in (least, most)) or said not in (
        None,
        pair,
    ):
        raise InvalidModel("time_step_limit", said, "give two numbers")
    return float(least), min(float(most), 1e30)


def _mamba2(values: Metadata) -> Fields:
    if values.flag("use_bias"):
        raise InvalidModel("use_bias", True, "only projections without biases are known")
    layer = Layer((_mamba2_part(values, "", "state_size", "n_groups"),))
    return {
        "vocab_size": values.whole("vocab_size"), "hidden_size": values.whole("hidden_size"),
        "stack": (layer,) * len(layers_of(values)), "context_length": 1 << 20,
        "norm_eps": values.number("layer_norm_epsilon", 1e-5),
        "tied_head": values.flag("tie_word_embeddings"),
    }  # fmt: skip


def _granite_hybrid(values: Metadata) -> Fields:
    """Granite 4 hybrid without experts: Mamba-2, and a few layers with attention."""
    if values.whole("num_local_experts", 0):
        fix = "Granite's hybrid opens without experts only"
        raise InvalidModel("num_local_experts", values.get("num_local_experts"), fix)
    turns = values.get("position_embedding_type") == "rope"
    rope = rope_of(values, head_sizes(values)[2]) if turns else None
    if values.flag("mamba_proj_bias"):
        raise InvalidModel("mamba_proj_bias", True, "only projections without biases are known")
    attention = attention_of(values, rope, scale=values.number("attention_multiplier", 1.0))
    mixer = _mamba2_part(values, "mamba_", "mamba_d_state", "mamba_n_groups")
    feed = replace(feed_of(values), size=values.whole("shared_intermediate_size"))
    factor = values.number("residual_multiplier", 1.0)
    stack = tuple(
        Layer((attention if attends else mixer, feed), factor=factor)
        for attends in _attends(values, "mamba")
    )
    return common(
        values, stack, embed_factor=values.number("embedding_multiplier", 1.0),
        logit_factor=1 / (values.number("logits_scaling", 1.0) or 1.0),
    )  # fmt: skip


_MAMBA = {
    "in_proj": "state_z+state_v+state_k+state_q+state_a", "out_proj": "state_o",
    "conv1d": "state_v_taps+state_k_taps+state_q_taps", "norm": "state_gain",
    "A_log": "state_decay", "D": "state_skip", "dt_bias": "state_dt_bias",
}  # fmt: skip

FAMILIES = (
    Family(
        "lfm2", _lfm2, ("Lfm2",), ("lfm2",),
        defaults={
            "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3,
            "conv_bias": False, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0, "norm_eps": 1e-5, "max_position_embeddings": 128000,
            "tie_word_embeddings": True, "intermediate_size": 12288,
        },
        names={
            "operator_norm": "mixer_norm", "ffn_norm": "mlp_norm",
            "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
            "self_attn.out_proj": "o", "self_attn.q_layernorm": "q_norm",
            "self_attn.k_layernorm": "k_norm", "feed_forward.w1": "gate", "feed_forward.w3": "up",
            "feed_forward.w2": "down", "conv.in_proj": "conv_b+conv_c+conv_x",
            "conv.out_proj": "conv_out", "conv.conv": "conv_taps",
        },
        outside={**LLAMA_OUTSIDE, "model.embedding_norm": "norm"},
    ),
    Family(
        "mamba2", _mamba2, ("Mamba2",), ("mamba2",),
        defaults={
            "num_heads": 128, "head_dim": 64, "vocab_size": 32768, "hidden_size": 4096,
            "state_size": 128, "num_hidden_layers": 64, "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4, "n_groups": 8, "use_bias": False, "use_conv_bias": True,
            "time_step_limit": [0.0, float("inf")], "tie_word_embeddings": False,
        },
        names={"norm": "state_norm", **{f"mixer.{name}": own for name, own in _MAMBA.items()}},
        outside={
            "backbone.embeddings": "embed", "backbone.norm_f": "norm", "lm_head": "head",
        },
        layers="backbone.layers.",
    ),
    Family(
        "granitehybrid", _granite_hybrid, ("GraniteMoeHybrid",), ("granitemoehybrid",),
        defaults={
            "hidden_act": "silu", "shared_intermediate_size": 1024, "mamba_n_heads": 128,
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": 64, "mamba_d_conv": 4,
            "mamba_conv_bias": True, "mamba_proj_bias": False, "num_local_experts": 0,
        },
        names={
            **LLAMA_NAMES, "input_layernorm": "mixer_norm",
            "shared_mlp.input_linear": "gate+up", "shared_mlp.output_linear": "down",
            **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        },
    ),
)  # fmt: skip
