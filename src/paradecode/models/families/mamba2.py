"""Families with Mamba-2's layers: Mamba-2, Bamba, Granite 4, Falcon-H1 and Nemotron-H."""

from __future__ import annotations

import math
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
from paradecode.models.parts import Feed, Layer, Part
from paradecode.models.recurrence import Recurrence


def attending(values: Metadata, state: str) -> list[bool]:
    """Return for each layer whether it attends; the others have the kind ``state``."""
    kinds, count = values.get("layer_types"), len(layers_of(values))
    known = {"full_attention": True, "attention": True, state: False, "linear_attention": False}
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {*known}:
        raise InvalidModel("layer_types", kinds, f"give {count} of full_attention, {state}")
    return [known[kind] for kind in kinds]


def value_dim(values: Metadata, heads: int) -> int:
    """Return the size of a head of values in a GGUF file, which gives that of all together."""
    inner = values.whole("inner_size", None, 1, 1 << 20)
    if inner % heads:
        raise InvalidModel("ssm.inner_size", inner, f"give a multiple of {heads} heads")
    return inner // heads


def _mamba2_part(values: Metadata, keys: tuple[str, ...]) -> Recurrence:
    """Return the heads of Mamba-2 (arXiv 2405.21060).

    Args:
        keys: names of the numbers of heads, of a head's channels, of key channels, of groups and of
            taps, and of the flag that says whether the convolution has a bias.
    """
    only_silu(values, "mamba_hidden_act" if "mamba_hidden_act" in values else "hidden_act")
    heads, dim = values.whole(keys[0], None, 1), keys[1]
    groups = values.whole(keys[3], 1, 1)
    least, most = _bounds(values.get("time_step_limit"))
    if values.get(dim) == "auto":
        inner = values.whole("mamba_expand", 2, 1) * values.whole("hidden_size")
        values[dim] = values.whole("mamba_d_ssm", inner) // heads
    gguf = values.flag("gguf")
    return Recurrence(
        heads, groups, values.whole(keys[2], None, 1),
        value_dim(values, heads) if gguf else values.whole(dim, None, 1),
        width=values.whole(keys[4], 4, 2, 16),
        tap_bias=values.flag("tap_bias" if gguf else keys[5]), skip=True, gate="before",
        out_norm="groups", norm_groups=groups, least_step=least, most_step=most,
    )  # fmt: skip


def only_silu(values: Metadata, key: str) -> None:
    """Refuse other activation functions behind the convolution."""
    if values.get(key, "silu") not in ("silu", "swish"):
        raise InvalidModel(key, values[key], "only silu is known behind a convolution")


def _unbiased(values: Metadata, *keys: str) -> None:
    """Refuse biases of projections that no released model has."""
    for key in keys:
        if values.flag(key):
            raise InvalidModel(key, True, "only projections without biases are known")


def _bounds(said: object) -> tuple[float, float]:
    """Return the bounds of a step. transformers writes infinity as an object."""
    pair = [0.0, 1e30] if said is None else said
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        found = [1e30 if each == {"__float__": "Infinity"} else each for each in pair]
        if all(isinstance(each, (int, float)) for each in found):
            return float(found[0]), min(float(found[1]), 1e30)
    raise InvalidModel("time_step_limit", said, "give two numbers")


def _mamba2(values: Metadata) -> Fields:
    _unbiased(values, "use_bias")
    layer = Layer((_mamba2_part(values, _SHORT),))
    return {
        "vocab_size": values.whole("vocab_size"), "hidden_size": values.whole("hidden_size"),
        "stack": (layer,) * len(layers_of(values)), "context_length": 1 << 20,
        "norm_eps": values.number("layer_norm_epsilon", 1e-5),
        "tied_head": values.flag("tie_word_embeddings"),
    }  # fmt: skip


def _granite_hybrid(values: Metadata) -> Fields:
    """Granite 4 hybrid: Mamba-2, and a few layers with attention; an MLP, or experts beside it."""
    turns = values.get("position_embedding_type") == "rope" or values.flag("turned")
    rope = rope_of(values, head_sizes(values)[2]) if turns else None
    _unbiased(values, "mamba_proj_bias")
    attention = attention_of(values, rope, scale=values.number("attention_multiplier", 1.0))
    mixer = _mamba2_part(values, _LONG)
    feed, experts = feed_of(values), values.whole("num_local_experts", 0, 0, MOST)
    if experts:
        mixture = Mixture(
            experts, values.whole("num_experts_per_tok"), feed.size, normalised=True,
            shared_size=values.whole("shared_intermediate_size", None, 1, MOST),
        )  # fmt: skip
        feed = replace(feed, size=0, mixture=mixture)
    elif not values.get("gguf"):
        feed = replace(feed, size=values.whole("shared_intermediate_size"))
    made = values.number("residual_multiplier", 1.0)
    attention, mixer = replace(attention, out_factor=made), replace(mixer, out_factor=made)
    feed = replace(feed, out_factor=made)
    stack = tuple(
        Layer((attention if attends else mixer, feed)) for attends in attending(values, "mamba")
    )
    return common(
        values, stack, embed_factor=values.number("embedding_multiplier", 1.0),
        logit_factor=1 / (values.number("logits_scaling", 1.0) or 1.0),
    )  # fmt: skip


def _bamba(values: Metadata) -> Fields:
    """Bamba: Mamba-2, and a few layers with attention, of which half of each head is rotated."""
    attends = values.get("attn_layer_indices") or []
    if not isinstance(attends, list):
        raise InvalidModel("attn_layer_indices", attends, "give a list of indices of layers")
    _unbiased(values, "mamba_proj_bias")
    values.setdefault("partial_rotary_factor", 0.5)
    attention = attention_of(values, rope_of(values, head_sizes(values)[2]))
    mixer = _mamba2_part(values, _LONG)
    feed = feed_of(values, bias=values.flag("mlp_bias"))
    return common(values, tuple(
        Layer((attention if index in attends else mixer, feed)) for index in layers_of(values)
    ))  # fmt: skip


def _falcon_h1(values: Metadata) -> Fields:
    """Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side behind one norm.

    Its factors of inputs and keys are factors of scores and of what the attention made.
    """
    _unbiased(values, "mamba_proj_bias", "attention_bias")
    size = head_sizes(values)[2]
    seen, keys = (values.number(f"{name}_multiplier", 1.0) for name in ("attention_in", "key"))
    if not seen > 0 or not keys > 0:
        raise InvalidModel("key_multiplier", [seen, keys], "give factors of keys above 0")
    attention = attention_of(
        values, rope_of(values, size), scale=keys * seen**2 / math.sqrt(size),
        out_factor=seen * values.number("attention_out_multiplier", 1.0),
    )  # fmt: skip
    z, v, k, q, a = _factors(values, "ssm_multipliers", 5, "ssm_in_multiplier")
    mixer = replace(
        _mamba2_part(values, _LONG), norm="shared", factors=(q, k, v, z, a, 1.0),
        out_factor=values.number("ssm_out_multiplier", 1.0),
        output_bias=values.flag("projectors_bias"),
    )  # fmt: skip
    if not values.flag("mamba_rms_norm"):
        mixer = replace(mixer, out_norm="none")
    elif values.flag("mamba_norm_before_gate"):
        mixer = replace(mixer, gate="after")
    gate, down = _factors(values, "mlp_multipliers", 2)
    feed = feed_of(values, bias=values.flag("mlp_bias"), gate_factor=gate, out_factor=down)
    stack = (Layer(((attention, mixer), feed)),) * len(layers_of(values))
    return common(
        values, stack, embed_factor=values.number("embedding_multiplier", 1.0),
        logit_factor=values.number("lm_head_multiplier", 1.0),
    )  # fmt: skip


def _factors(values: Metadata, key: str, count: int, every: str = "") -> list[float]:
    """Return ``count`` factors, which are 1 by default, times the factor of all."""
    said = values.get(key)
    given = [1.0] * count if said is None else said
    if not isinstance(given, (list, tuple)) or len(given) != count:
        raise InvalidModel(key, said, f"give {count} numbers")
    named = Metadata({f"{key}[{index}]": each for index, each in enumerate(given)})
    shared = values.number(every, 1.0) if every else 1.0
    return [shared * named.number(name) for name in named]


def _nemotron_h(values: Metadata) -> Fields:
    """Nemotron-H (arXiv 2504.03624): layers of one part each, and attention without positions."""
    gguf = values.flag("gguf")
    kinds = _kinds_in_gguf(values) if gguf else _kinds_of(values)
    _unbiased(values, "use_bias", "mamba_proj_bias", "attention_bias")
    if not gguf:  # The class takes its lower bound from another fact.
        values["time_step_limit"] = [values.number("time_step_min", 0.001), 1e30]
    parts: dict[str, Part] = {}
    if "linear_attention" in kinds:
        parts["linear_attention"] = _mamba2_part(values, _NEMOTRON)
    if "full_attention" in kinds:
        parts["full_attention"] = attention_of(values, None, output_bias=False)
    if "mlp" in kinds:
        biased = values.flag("mlp_bias")
        parts["mlp"] = feed_of(values, "mlp_hidden_act", gated=False, bias=biased)
    if "moe" in kinds:
        parts["moe"] = _nemotron_experts(values)
    stack = tuple(Layer((parts[kind],)) for kind in kinds)
    eps = values.number("rms_norm_eps" if gguf else "layer_norm_epsilon", 1e-5)
    return common(values, stack, norm_eps=eps)


_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def _kinds_of(values: Metadata) -> list[str]:
    """Return the kind of each layer: they are listed, or letters of a pattern."""
    key = next((key for key in ("layers_block_type", "layer_types") if values.get(key)), "")
    said = values.get(key or "hybrid_override_pattern")
    kinds = said if key else [_LETTERS.get(letter, letter) for letter in str(said or "")]
    known = {**dict.fromkeys(_LETTERS.values()), "mamba": None, "attention": None}
    if not isinstance(kinds, list) or not kinds or not {*map(str, kinds)} <= {*known}:
        fix = f"list {', '.join(_LETTERS.values())}"
        raise InvalidModel(key or "hybrid_override_pattern", said, fix)
    older = {"mamba": "linear_attention", "attention": "full_attention"}
    values["num_hidden_layers"] = len(kinds)
    return [older.get(str(kind), str(kind)) for kind in kinds]


def _kinds_in_gguf(values: Metadata) -> list[str]:
    """Return the kind of each layer of a GGUF file, which lists heads and inner widths."""
    count = len(layers_of(values))
    sizes, attends = values.get("intermediate_size"), attending(values, "linear_attention")
    widths = sizes if isinstance(sizes, list) else [sizes] * count
    if len(widths) != count or len({*widths} - {0}) > 1:
        raise InvalidModel("feed_forward_length", sizes, "give one width, and 0 for other layers")
    values["intermediate_size"] = max(widths)
    fed = "moe" if values.whole("n_routed_experts", 0) else "mlp"
    return [
        fed if width else "full_attention" if turns else "linear_attention"
        for width, turns in zip(widths, attends)
    ]


def _nemotron_experts(values: Metadata) -> Feed:
    """Return Nemotron-H's experts without gates, one of which all rows pass."""
    _unbiased(values, "mlp_bias")
    if values.get("moe_latent_size") is not None:
        fix = "only experts that read the stream itself are known"
        raise InvalidModel("moe_latent_size", values["moe_latent_size"], fix)
    mixture = Mixture(
        values.whole("n_routed_experts", None, 1, MOST), values.whole("num_experts_per_tok"),
        values.whole("moe_intermediate_size", None, 1, MOST), score="sigmoid", bias=True,
        shared_size=values.whole("moe_shared_expert_intermediate_size", None, 1, MOST),
        groups=values.whole("n_group", 1), chosen_groups=values.whole("topk_group", 1),
        normalised=values.flag("norm_topk_prob"), scale=values.number("routed_scaling_factor", 1.0),
    )  # fmt: skip
    return replace(feed_of(values, "mlp_hidden_act", gated=False), size=0, mixture=mixture)


_NEMOTRON = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel",
             "use_conv_bias")  # fmt: skip
_SHORT = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_conv_bias")
_LONG = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
         "mamba_conv_bias")  # fmt: skip
_MAMBA = {
    "in_proj": "state_z+state_v+state_k+state_q+state_a", "out_proj": "state_o",
    "conv1d": "state_v_taps+state_k_taps+state_q_taps", "norm": "state_gain",
    "A_log": "state_decay", "D": "state_skip", "dt_bias": "state_dt_bias",
}  # fmt: skip

SSM = {
    "ssm_conv1d": "state_v_taps+state_k_taps+state_q_taps", "ssm_dt": "state_dt_bias",
    "ssm_a": "state_decay", "ssm_d": "state_skip", "ssm_norm": "state_gain",
    "ssm_in": "state_z+state_v+state_k+state_q+state_a", "ssm_out": "state_o",
}  # fmt: skip
"""Tensors of Mamba-2 in GGUF files."""
_SHARED = {
    "ffn_gate_shexp": "shared.gate", "ffn_up_shexp": "shared.up", "ffn_down_shexp": "shared.down",
}  # fmt: skip
_LONG_FACTS = {
    "ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups", "ssm.time_step_rank": "mamba_n_heads",
}  # fmt: skip

FAMILIES = (
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
        layers="backbone.layers.", gguf=("mamba2",), gguf_names={**SSM, "attn_norm": "state_norm"},
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
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4,
            "mamba_conv_bias": True, "mamba_proj_bias": False, "num_local_experts": 8,
            "num_experts_per_tok": 2, "intermediate_size": 11008, "vocab_size": 32000,
            "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        },
        nullable=frozenset({"num_key_value_heads", "position_embedding_type", "layer_types"}),
        names={
            **LLAMA_NAMES, "input_layernorm": "mixer_norm",
            "shared_mlp.input_linear": "shared.gate+up?gate+up",
            "shared_mlp.output_linear": "shared.down?down",
            "block_sparse_moe.router.layer": "router",
            "block_sparse_moe.input_linear": "experts.gate_up",
            "block_sparse_moe.output_linear": "experts.down",
            **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        },
        gguf=("granitehybrid",), gguf_names={**SSM, **_SHARED, "attn_norm": "mixer_norm"},
        gguf_facts={
            **_LONG_FACTS, "rope.scaling.finetuned": "turned",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        gguf_defaults={"turned": True}, gguf_interleaved=True,
    ),
    Family(
        "falcon-h1", _falcon_h1, ("FalconH1",), ("falcon_h1",),
        defaults={
            "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
            "tie_word_embeddings": False, "mamba_d_ssm": 1024, "mamba_n_heads": 128,
            "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
            "mamba_conv_bias": True, "mamba_norm_before_gate": True, "attention_bias": False,
        },
        nullable=frozenset({"num_key_value_heads", "mamba_d_ssm"}),
        names={
            **LLAMA_NAMES, "pre_ff_layernorm": "mlp_norm",
            **{f"feed_forward.{name}_proj": name for name in ("gate", "up", "down")},
            **{f"mamba.{name}": own for name, own in _MAMBA.items()},
        },
        outside={**LLAMA_OUTSIDE, "model.final_layernorm": "norm"},
        gguf=("falcon-h1",), gguf_names=SSM, gguf_facts=_LONG_FACTS,
    ),
    Family(
        "nemotron_h", _nemotron_h, ("NemotronH",), ("nemotron_h",),
        defaults={
            "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": False,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 4096, "attention_bias": False, "intermediate_size": 21504,
            "mlp_hidden_act": "relu2", "mlp_bias": False, "ssm_state_size": 128,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4,
            "use_conv_bias": True, "use_bias": False, "mamba_proj_bias": False,
            "time_step_min": 0.001, "n_routed_experts": 8, "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "layer_norm_epsilon": 1e-5,
        },
        nullable=frozenset({"num_key_value_heads"}),
        names={
            "norm": "mixer_norm", **{f"mixer.{name}": own for name, own in _MAMBA.items()},
            **{f"mixer.{name}_proj": name for name in ("q", "k", "v", "o", "up", "down")},
            "mixer.gate": "router", "mixer.gate.e_score_correction_bias": "router.bias",
            **{f"mixer.experts.*.{name}_proj": f"experts.*.{name}" for name in ("up", "down")},
            **{f"mixer.shared_experts.{name}_proj": f"shared.{name}" for name in ("up", "down")},
        },
        outside={"backbone.embeddings": "embed", "backbone.norm_f": "norm", "lm_head": "head"},
        layers="backbone.layers.", gguf=("nemotron_h", "nemotron_h_moe"),
        gguf_names={
            **SSM, **_SHARED, "attn_norm": "mixer_norm", "exp_probs_b": "router.bias",
        },
        gguf_defaults={"mlp_hidden_act": "relu2"},
        gguf_facts={
            "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "ssm_state_size",
            "ssm.group_count": "n_groups", "ssm.time_step_rank": "mamba_num_heads",
            "expert_count": "n_routed_experts", "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group", "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        },
    ),
)  # fmt: skip
