"""Families whose layers keep a state: LFM2, Mamba-2, Granite 4, Bamba, Qwen3-Next and 3.5."""

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
from paradecode.models.mixture import MOST, Mixture
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
    if values.get("gguf"):
        dim, biased = _value_dim(values, heads), values.flag("tap_bias")
    else:
        dim = values.whole(f"{before}d_head" if before else "head_dim", None, 1)
        biased = values.flag(f"{before}conv_bias" if before else "use_conv_bias")
    return Recurrence(
        heads, shared, values.whole(size, None, 1), dim,
        width=values.whole(f"{before}d_conv" if before else "conv_kernel", 4, 2, 16),
        tap_bias=biased, skip=True, gate="before", out_norm="groups", norm_groups=shared,
        least_step=least, most_step=most,
    )  # fmt: skip


def _value_dim(values: Metadata, heads: int) -> int:
    """Return the size of a head of values in a GGUF file, which gives that of all together."""
    inner = values.whole("inner_size", None, 1, 1 << 20)
    if inner % heads:
        raise InvalidModel("ssm.inner_size", inner, f"give a multiple of {heads} heads")
    return inner // heads


def _bounds(said: object) -> tuple[float, float]:
    """Return the bounds of a step. transformers writes infinity as an object."""
    pair = [0.0, 1e30] if said is None else said
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        found = [1e30 if each == {"__float__": "Infinity"} else each for each in pair]
        if all(isinstance(each, (int, float)) for each in found):
            return float(found[0]), min(float(found[1]), 1e30)
    raise InvalidModel("time_step_limit", said, "give two numbers")


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
    turns = values.get("position_embedding_type") == "rope" or values.flag("turned")
    rope = rope_of(values, head_sizes(values)[2]) if turns else None
    if values.flag("mamba_proj_bias"):
        raise InvalidModel("mamba_proj_bias", True, "only projections without biases are known")
    attention = attention_of(values, rope, scale=values.number("attention_multiplier", 1.0))
    mixer = _mamba2_part(values, "mamba_", "mamba_d_state", "mamba_n_groups")
    feed = feed_of(values)
    if not values.get("gguf"):
        feed = replace(feed, size=values.whole("shared_intermediate_size"))
    factor = values.number("residual_multiplier", 1.0)
    stack = tuple(
        Layer((attention if attends else mixer, feed), factor=factor)
        for attends in _attends(values, "mamba")
    )
    return common(
        values, stack, embed_factor=values.number("embedding_multiplier", 1.0),
        logit_factor=1 / (values.number("logits_scaling", 1.0) or 1.0),
    )  # fmt: skip


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
    dim = _value_dim(values, heads) if gguf else values.whole("linear_value_head_dim")
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
        for index, attends in enumerate(_attends(values, "linear_attention"))
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


def _bamba(values: Metadata) -> Fields:
    """Bamba: Mamba-2, and a few layers with attention, of which half of each head is rotated."""
    attends = values.get("attn_layer_indices") or []
    if not isinstance(attends, list):
        raise InvalidModel("attn_layer_indices", attends, "give a list of indices of layers")
    if values.flag("mamba_proj_bias"):
        raise InvalidModel("mamba_proj_bias", True, "only projections without biases are known")
    values.setdefault("partial_rotary_factor", 0.5)
    if values.get("mamba_d_head") == "auto":
        inner = values.whole("mamba_expand", 2, 1) * values.whole("hidden_size")
        values["mamba_d_head"] = inner // values.whole("mamba_n_heads", None, 1)
    attention = attention_of(values, rope_of(values, head_sizes(values)[2]))
    mixer = _mamba2_part(values, "mamba_", "mamba_d_state", "mamba_n_groups")
    feed = feed_of(values, bias=values.flag("mlp_bias"))
    return common(values, tuple(
        Layer((attention if index in attends else mixer, feed)) for index in layers_of(values)
    ))  # fmt: skip


_MAMBA = {
    "in_proj": "state_z+state_v+state_k+state_q+state_a", "out_proj": "state_o",
    "conv1d": "state_v_taps+state_k_taps+state_q_taps", "norm": "state_gain",
    "A_log": "state_decay", "D": "state_skip", "dt_bias": "state_dt_bias",
}  # fmt: skip

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
_SSM = {
    "ssm_conv1d": "state_v_taps+state_k_taps+state_q_taps", "ssm_dt": "state_dt_bias",
    "ssm_a": "state_decay", "ssm_d": "state_skip", "ssm_norm": "state_gain",
    "ssm_in": "state_z+state_v+state_k+state_q+state_a", "ssm_out": "state_o",
}  # fmt: skip
"""Tensors of Mamba-2 in GGUF files."""
_QWEN_GGUF = {
    **_SSM, "attn_norm": "mixer_norm", "post_attention_norm": "mlp_norm", "attn_q": "q/attn_gate",
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
        layers="backbone.layers.", gguf=("mamba2",), gguf_names={**_SSM, "attn_norm": "state_norm"},
        gguf_facts={
            "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size",
            "ssm.group_count": "n_groups", "ssm.time_step_rank": "num_heads",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        },
    ),
    Family(
        "bamba", _bamba, ("Bamba",), ("bamba",),
        defaults={
            "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 262144,
            "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
            "mamba_proj_bias": False, "tie_word_embeddings": False, "attention_bias": False,
        },
        nullable=frozenset({"num_key_value_heads"}),
        names={
            **LLAMA_NAMES, "input_layernorm": "mixer_norm", "pre_ff_layernorm": "mlp_norm",
            **{f"feed_forward.{name}_proj": name for name in ("gate", "up", "down")},
            **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        },
        outside={**LLAMA_OUTSIDE, "model.final_layernorm": "norm"},
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
        gguf=("granitehybrid",), gguf_names={**_SSM, "attn_norm": "mixer_norm"},
        gguf_facts={
            "ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups", "ssm.time_step_rank": "mamba_n_heads",
            "rope.scaling.finetuned": "turned",
        },
        gguf_defaults={"turned": True}, gguf_interleaved=True,
    ),
)  # fmt: skip
