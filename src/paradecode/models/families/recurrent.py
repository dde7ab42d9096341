"""Families whose layers keep small states: Mamba, Jamba and RecurrentGemma."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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
)
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, Mixture
from paradecode.models.parts import Feed, Layer
from paradecode.models.small_states import LinearUnit, SelectiveScan


def _scan(values: Metadata, channels: int, names: tuple[str, ...]) -> SelectiveScan:
    """Return the channels of Mamba-1 (arXiv 2312.00752).

    Args:
        names: names of N, of the numbers of taps, of the rank, and of what has biases.
    """
    size, width, rank, tap_bias, bias = names
    if values.get("gguf"):
        biased = values.flag("tap_bias")
    elif values.flag(bias):
        raise InvalidModel(bias, True, "only projections without biases are known")
    else:
        biased = values.flag(tap_bias)
    usual = -(-values.whole("hidden_size", None, 1) // 16)
    return SelectiveScan(
        channels, values.whole(size, 16, 1),
        usual if values.get(rank) == "auto" else values.whole(rank, usual, 1),
        values.whole(width, 4, 2, 16), tap_bias=biased,
    )  # fmt: skip


def _mamba(values: Metadata) -> Fields:
    if values.flag("normed"):
        raise InvalidModel("ssm.dt_b_c_rms", True, "Falcon-Mamba's norms are not known")
    channels = values.whole("expand", 2, 1) * values.whole("hidden_size", None, 1)
    names = ("state_size", "conv_kernel", "time_step_rank", "use_conv_bias", "use_bias")
    known = "inner_size" if values.get("gguf") else "intermediate_size"
    layer = Layer((_scan(values, values.whole(known, channels, 1), names),))
    return {
        "vocab_size": values.whole("vocab_size"), "hidden_size": values.whole("hidden_size"),
        "stack": (layer,) * len(layers_of(values)), "context_length": 1 << 20,
        "norm_eps": values.number("layer_norm_epsilon", 1e-5),
        "tied_head": values.flag("tie_word_embeddings"),
    }  # fmt: skip


def _jamba(values: Metadata) -> Fields:
    """Jamba (arXiv 2403.19887): Mamba-1, few layers with attention, and experts in some."""
    channels = values.whole("mamba_expand", 2, 1) * values.whole("hidden_size", None, 1)
    names = [f"mamba_{name}" for name in ("d_state", "d_conv", "dt_rank", "conv_bias", "proj_bias")]
    mixer = replace(_scan(values, channels, tuple(names)), inner_norm=True)
    attention = attention_of(values, None)
    dense, count = feed_of(values), values.whole("num_experts", 1, 0, MOST)
    mixed = dense
    if count > 1:
        chosen, size = values.whole("num_experts_per_tok", 2), values.whole("intermediate_size")
        mixed = Feed(0, activation=dense.activation, mixture=Mixture(count, chosen, size))

    def every(kind: str) -> list[int]:
        period = values.whole(f"{kind}_layer_period", None, 1)
        offset = values.whole(f"{kind}_layer_offset", None, 0, period - 1)
        return [index for index in layers_of(values) if index % period == offset]

    if values.get("gguf"):
        kinds, routed = values.get("layer_types") or [], values.get("routed") or []
        attends = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    else:
        attends, routed = every("attn"), every("expert")
    return common(values, tuple(
        Layer((attention if index in attends else mixer, mixed if index in routed else dense))
        for index in layers_of(values)
    ))  # fmt: skip


def _recurrent_gemma(values: Metadata) -> Fields:
    """RecurrentGemma (arXiv 2404.07839): RG-LRU, and each third layer with local attention."""
    hidden, heads = (
        values.whole("hidden_size", None, 1),
        values.whole("num_attention_heads", None, 1),
    )
    values.setdefault("partial_rotary_factor", 0.5)
    units = values.whole("lru_width", hidden, 1)
    if units % heads:
        raise InvalidModel("lru_width", units, f"give a multiple of {heads} heads")
    mixer = LinearUnit(heads, units // heads, values.whole("conv1d_width", 4, 2, 16))
    attention = attention_of(
        values, rope_of(values, head_sizes(values)[2]), output_bias=True,
        window=values.whole("attention_window_size", 2048, 1),
    )  # fmt: skip
    feed = replace(feed_of(values, "hidden_activation", bias=True),
                   size=values.whole("intermediate_size", None, 2) // 2)  # fmt: skip
    kinds = values.get("block_types")
    if not isinstance(kinds, list) or not kinds or not {*map(str, kinds)} <= {*_BLOCKS}:
        raise InvalidModel("block_types", kinds, f"give a list of {' and '.join(_BLOCKS)}")
    return common(
        values,
        tuple(Layer((attention if kinds[index % len(kinds)] == "attention" else mixer, feed))
              for index in layers_of(values)),
        embed_factor=_bfloat16(hidden**0.5), softcap=values.number("logits_soft_cap", 30.0),
    )  # fmt: skip


_BLOCKS = ("recurrent", "attention")


def _bfloat16(value: float) -> float:
    """Return the nearest number of type bfloat16, as the family's factor of embeddings is."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))


_MAMBA = {
    "in_proj": "scan_x+scan_z", "conv1d": "scan_taps", "x_proj": "scan_inner", "dt_proj": "scan_dt",
    "A_log": "scan_decay", "D": "scan_skip", "out_proj": "scan_o", "dt_layernorm": "scan_dt_norm",
    "b_layernorm": "scan_b_norm", "c_layernorm": "scan_c_norm",
}  # fmt: skip
_SSM = {
    "ssm_in": "scan_x+scan_z", "ssm_conv1d": "scan_taps", "ssm_x": "scan_inner",
    "ssm_dt": "scan_dt", "ssm_a": "scan_decay", "ssm_d": "scan_skip", "ssm_out": "scan_o",
    "ssm_dt_norm": "scan_dt_norm", "ssm_b_norm": "scan_b_norm", "ssm_c_norm": "scan_c_norm",
}  # fmt: skip
"""Tensors of Mamba-1 in GGUF files."""
_GATES = {"input_gate": "unit_input", "recurrent_gate": "unit_rate"}
FAMILIES = (
    Family(
        "mamba", _mamba, ("Mamba",), ("mamba",),
        defaults={
            "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16,
            "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "use_bias": False,
            "use_conv_bias": True, "time_step_rank": "auto", "tie_word_embeddings": True,
        },
        names={"norm": "scan_norm", **{f"mixer.{name}": own for name, own in _MAMBA.items()}},
        outside={"backbone.embeddings": "embed", "backbone.norm_f": "norm", "lm_head": "head"},
        layers="backbone.layers.", gguf=("mamba",),
        gguf_facts={
            "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size",
            "ssm.time_step_rank": "time_step_rank", "ssm.dt_b_c_rms": "normed",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        },
        gguf_names={**_SSM, "attn_norm": "scan_norm"},
    ),
    Family(
        "jamba", _jamba, ("Jamba",), ("jamba",),
        defaults={
            "vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
            "num_experts_per_tok": 2, "num_experts": 16, "expert_layer_period": 2,
            "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
            "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto",
            "mamba_conv_bias": True, "mamba_proj_bias": False, "tie_word_embeddings": False,
        },
        nullable=frozenset({"num_key_value_heads"}),
        names={
            **LLAMA_NAMES, "input_layernorm": "mixer_norm", "pre_ff_layernorm": "mlp_norm",
            "feed_forward.router": "router",
            **{f"feed_forward.{name}_proj": name for name in ("gate", "up", "down")},
            **{f"feed_forward.experts.*.{name}_proj": f"experts.*.{name}"
               for name in ("gate", "up", "down")},
            **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        },
        outside={**LLAMA_OUTSIDE, "model.final_layernorm": "norm"},
        gguf=("jamba",), gguf_names={**_SSM, "attn_norm": "mixer_norm"},
        gguf_facts={
            "ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_dt_rank", "expert_count": "num_experts",
        },
    ),
    Family(
        "recurrentgemma", _recurrent_gemma, ("RecurrentGemma",), ("recurrent_gemma",),
        defaults={
            "vocab_size": 256000, "hidden_size": 2560, "intermediate_size": 7680,
            "num_hidden_layers": 26, "num_attention_heads": 10, "conv1d_width": 4,
            "attention_window_size": 2048, "logits_soft_cap": 30.0, "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
            "block_types": ["recurrent", "recurrent", "attention"], "tie_word_embeddings": True,
            "max_position_embeddings": 1 << 20,
        },
        nullable=frozenset({"lru_width", "num_key_value_heads"}), less_one=True,
        names={
            "temporal_pre_norm": "mixer_norm", "channel_pre_norm": "mlp_norm",
            **{f"mlp_block.{name}_proj": name for name in ("gate", "up", "down")},
            **{f"temporal_block.{name}_proj": name for name in "qkvo"},
            "temporal_block.conv_1d": "unit_taps", "temporal_block.linear_x": "unit_x",
            "temporal_block.linear_y": "unit_z", "temporal_block.linear_out": "unit_o",
            "temporal_block.rg_lru.recurrent_param": "unit_decay",
            **{f"temporal_block.rg_lru.{name}_weight": own for name, own in _GATES.items()},
            **{f"temporal_block.rg_lru.{name}_bias": f"{own}.bias" for name, own in _GATES.items()},
        },
        outside={**LLAMA_OUTSIDE, "model.final_norm": "norm"},
    ),
)  # fmt: skip
