"""Families whose layers keep a state: LFM2, Qwen3-Next and 3.5, OLMo-hybrid and GLA."""

from __future__ import annotations

import json

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
from paradecode.models.families.mamba2 import SSM, attending, only_silu, value_dim
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, Mixture
from paradecode.models.parts import Feed, Layer
from paradecode.models.recurrence import Convolution, Recurrence


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
        Layer((attention if attends else mixer, feed)) for attends in attending(values, "conv")
    )
    return common(values, stack, norm_eps=values.number("norm_eps", 1e-5))


def _qwen3_next(values: Metadata, tiled: bool = False) -> Fields:
    """Qwen3-Next and Qwen3.5: gated delta heads, and each fourth layer with gated attention.

    Args:
        tiled: whether value heads stand in the order of llama.cpp's converter in GGUF files.
    """
    gguf = values.flag("gguf")
    count, every = len(layers_of(values)), values.whole("full_attention_interval", 4, 1)
    if values.get("layer_types") is None:
        kinds = ["linear_attention" if (i + 1) % every else "attention" for i in range(count)]
        values["layer_types"] = kinds
    values.setdefault("partial_rotary_factor", 0.25)
    rope, key_dim = rope_of(values, head_sizes(values)[2]), values.whole("linear_key_head_dim")
    heads = values.whole("linear_num_value_heads", None, 1)
    dim = value_dim(values, heads) if gguf else values.whole("linear_value_head_dim")
    mixer = Recurrence(
        heads, values.whole("linear_num_key_heads"), key_dim, dim, rule="delta",
        strength="sigmoid", width=values.whole("linear_conv_kernel_dim", 4, 2, 16), unit=True,
        tiled=gguf and tiled, scale=max(key_dim, 1) ** -0.5, gate="after", out_norm="head",
    )  # fmt: skip
    attention = attention_of(values, rope, qk_norm="head", gated=True)
    dense, mixed = feed_of(values), _experts_of(values)
    step, without = values.whole("decoder_sparse_step", 1, 1), values.get("mlp_only_layers") or []
    if not isinstance(without, list):
        raise InvalidModel("mlp_only_layers", without, "give a list of indices of layers")
    stack = tuple(
        Layer((
            attention if attends else mixer,
            dense if mixed is None or index in without or (index + 1) % step else mixed,
        ))
        for index, attends in enumerate(attending(values, "linear_attention"))
    )  # fmt: skip
    return common(values, stack)


def _qwen35(values: Metadata) -> Fields:
    return _qwen3_next(values, tiled=True)


def _experts_of(values: Metadata) -> Feed | None:
    """Return Qwen3-Next's experts with a shared one, or None if there are none."""
    if not values.whole("num_experts", 0):
        return None
    mixture = Mixture(
        values.whole("num_experts", None, 1, MOST), values.whole("num_experts_per_tok"),
        values.whole("moe_intermediate_size", None, 1, MOST),
        shared_size=values.whole("shared_expert_intermediate_size", None, 1, MOST),
        shared_gated=True, normalised=values.flag("norm_topk_prob"),
    )  # fmt: skip
    return Feed(0, mixture=mixture)


def _olmo_hybrid(values: Metadata) -> Fields:
    """OLMo-hybrid: gated delta heads, and each fourth layer is OLMo 2's."""
    only_silu(values, "hidden_act")
    heads, count = head_sizes(values)[0], len(layers_of(values))
    if values.get("layer_types") is None:
        kinds = ["linear_attention" if (index + 1) % 4 else "attention" for index in range(count)]
        values["layer_types"] = kinds if "attention" in kinds else [*kinds[:-1], "attention"]
    said = values.get("rope_parameters")
    turns = not isinstance(said, dict) or said.get("rope_theta", 0) is not None
    rope = rope_of(values, head_sizes(values)[2]) if turns else None
    groups = values.whole("linear_num_key_heads", heads, 1, 1024)
    usual = int(0.75 * values.whole("hidden_size") / groups)
    key_dim = values.whole("linear_key_head_dim", usual, 1)
    strength = 2.0 if values.flag("linear_allow_neg_eigval") else 1.0
    mixer = Recurrence(
        values.whole("linear_num_value_heads", heads), groups, key_dim,
        values.whole("linear_value_head_dim", 2 * key_dim), rule="delta", strength="sigmoid",
        width=values.whole("linear_conv_kernel_dim", 4, 2, 16), unit=True, scale=key_dim**-0.5,
        gate="after", out_norm="head", factors=(*[1.0] * 5, strength), out_eps=1e-5,
    )  # fmt: skip
    delta = Layer((mixer, feed_of(values)))
    attention = attention_of(values, rope, norm="after", qk_norm="all")
    near = Layer((attention, feed_of(values, norm="after")))
    return common(values, tuple(
        near if attends else delta for attends in attending(values, "linear_attention")
    ))  # fmt: skip


def _gla(values: Metadata) -> Fields:
    """GLA (arXiv 2312.06635): heads whose key channels decay each in its own way."""
    for key, usual in (("feature_map", None), ("clamp_min", None), ("attn", None),
                       ("use_short_conv", False), ("use_output_gate", True), ("use_gk", True),
                       ("use_gv", False), ("elementwise_affine", True)):  # fmt: skip
        if values.get(key, usual) != usual:
            raise InvalidModel(key, values[key], f"only {json.dumps(usual)} is known")
    hidden, heads = values.whole("hidden_size", None, 1), values.whole("num_heads", None, 1, 1024)
    if values.whole("num_kv_heads", heads) != heads:
        fix = "only models whose heads have keys of their own are known"
        raise InvalidModel("num_kv_heads", values["num_kv_heads"], fix)
    sizes = [int(hidden * values.number(key)) for key in ("expand_k", "expand_v")]
    for key, size in zip(("expand_k", "expand_v"), sizes):
        if size < heads or size % heads:
            raise InvalidModel(key, values[key], f"it makes {size} channels of {heads} heads")
    key_dim, dim = (size // heads for size in sizes)
    mixer = Recurrence(
        heads, heads, key_dim, dim, decay="logsigmoid", channels=True, decay_rank=16,
        decay_divisor=16.0, strength="one", scale=key_dim**-0.5, gate="after", out_norm="head",
    )  # fmt: skip
    if values.get("intermediate_size") is None:
        inner = int(hidden * values.whole("hidden_ratio", 4, 1, 1 << 10) * 2 / 3)
        values["intermediate_size"] = 256 * -(-inner // 256)
    stack = (Layer((mixer, feed_of(values))),) * len(layers_of(values))
    return common(values, stack, norm_eps=values.number("norm_eps", 1e-6))


_DELTA = {
    "linear_attn.conv1d": "state_q_taps+state_k_taps+state_v_taps",
    "linear_attn.norm": "state_gain", "linear_attn.A_log": "state_decay",
    "linear_attn.dt_bias": "state_dt_bias", "linear_attn.out_proj": "state_o",
}  # fmt: skip
_QWEN_NAMES = {
    **LLAMA_NAMES, "input_layernorm": "mixer_norm", "self_attn.q_proj": "q/attn_gate", **_DELTA,
    "mlp.gate": "router", "mlp.experts.gate_up_proj": "experts.gate_up",
    "mlp.experts.down_proj": "experts.down", "mlp.shared_expert_gate": "shared.gain",
    **{f"mlp.experts.*.{name}_proj": f"experts.*.{name}" for name in ("gate", "up", "down")},
    **{f"mlp.shared_expert.{name}_proj": f"shared.{name}" for name in ("gate", "up", "down")},
}  # fmt: skip
_QWEN_GGUF = {
    **SSM, "attn_norm": "mixer_norm", "post_attention_norm": "mlp_norm", "attn_q": "q/attn_gate",
    "attn_qkv": "state_q+state_k+state_v", "attn_gate": "state_z", "ssm_ba": "state_b/state_a",
    "ssm_conv1d": "state_q_taps+state_k_taps+state_v_taps", "ssm_beta": "state_b",
    "ssm_alpha": "state_a", "ssm_in": "state_q/state_k/state_v/state_z",
    "ffn_gate_inp_shexp": "shared.gain", "ffn_gate_shexp": "shared.gate",
    "ffn_up_shexp": "shared.up", "ffn_down_shexp": "shared.down",
}  # fmt: skip
_QWEN_FACTS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
    "expert_count": "num_experts",
}  # fmt: skip
_QWEN = {
    "hidden_act": "silu", "num_attention_heads": 16, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False, "head_dim": 256,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip

FAMILIES = (
    Family(
        "qwen3next", _qwen3_next, ("Qwen3Next",), ("qwen3_next",),
        defaults={
            **_QWEN, "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 48, "num_key_value_heads": 2, "decoder_sparse_step": 1,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": True,
        },
        nullable=frozenset({"layer_types", "mlp_only_layers"}), less_one=True,
        names={
            **_QWEN_NAMES,
            "linear_attn.in_proj_qkvz": "state_q/state_k/state_v/state_z",
            "linear_attn.in_proj_ba": "state_b/state_a",
        },
        gguf=("qwen3next",), gguf_facts=_QWEN_FACTS, gguf_names=_QWEN_GGUF,
        gguf_defaults={"norm_topk_prob": True},
    ),
    Family(
        "qwen35", _qwen35, ("Qwen3_5", "Qwen3_5Moe"), ("qwen3_5_text", "qwen3_5_moe_text"),
        defaults={
            **_QWEN, "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
            "num_hidden_layers": 32, "num_key_value_heads": 4, "norm_topk_prob": True,
            "num_experts": 0,
        },
        nullable=frozenset({"layer_types"}), less_one=True,
        names={
            **_QWEN_NAMES, "linear_attn.in_proj_qkv": "state_q+state_k+state_v",
            "linear_attn.in_proj_z": "state_z", "linear_attn.in_proj_b": "state_b",
            "linear_attn.in_proj_a": "state_a",
        },
        gguf=("qwen35", "qwen35moe"), gguf_facts=_QWEN_FACTS, gguf_names=_QWEN_GGUF,
        gguf_defaults={"norm_topk_prob": True},
    ),
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
        gguf=("lfm2",),
        gguf_facts={
            "shortconv.l_cache": "conv_L_cache", "attention.layer_norm_rms_epsilon": "norm_eps",
        },
        gguf_names={
            "attn_norm": "mixer_norm", "shortconv.in_proj": "conv_b+conv_c+conv_x",
            "shortconv.conv": "conv_taps", "shortconv.out_proj": "conv_out",
            "token_embd_norm": "norm",
        },
    ),
    Family(
        "olmo_hybrid", _olmo_hybrid, ("OlmoHybrid",), ("olmo_hybrid",),
        defaults={
            "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 30, "hidden_act": "silu",
            "max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
            "attention_bias": False, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True,
        },
        names={
            **LLAMA_NAMES, "input_layernorm": "state_norm", "attention_layer_norm": "state_norm",
            "post_attention_layernorm": "after_attn?mlp_norm",
            "feedforward_layer_norm": "after_attn?mlp_norm",
            "post_feedforward_layernorm": "after_mlp",
            **{f"linear_attn.{name}_proj": f"state_{name}" for name in "qkvabo"},
            **{f"linear_attn.{name}_conv1d": f"state_{name}_taps" for name in "qkv"},
            "linear_attn.conv1d": "state_q_taps+state_k_taps+state_v_taps",
            "linear_attn.g_proj": "state_z", "linear_attn.o_norm": "state_gain",
            "linear_attn.A_log": "state_decay", "linear_attn.dt_bias": "state_dt_bias",
        },
    ),
    Family(
        "gla", _gla, ("GLA",), ("gla",),
        defaults={
            "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 4,
            "expand_k": 0.5, "expand_v": 1, "hidden_ratio": 4, "hidden_act": "swish",
            "norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False,
        },
        nullable=frozenset({"intermediate_size", "num_kv_heads", "hidden_ratio"}),
        names={
            "attn_norm": "state_norm", "mlp_norm": "mlp_norm",
            **{f"attn.{name}_proj": f"state_{name}" for name in ("q", "k", "v", "o")},
            "attn.g_proj": "state_z", "attn.gk_proj.0": "state_a_down",
            "attn.gk_proj.1": "state_a", "attn.gk_proj.1.bias": "state_dt_bias",
            "attn.g_norm_swish_gate": "state_gain", "attn.g_norm": "state_gain",
            **{f"mlp.{name}_proj": name for name in ("gate", "up", "down")},
        },
        outside={**LLAMA_OUTSIDE, "model.embeddings": "embed"},
    ),
)  # fmt: skip
