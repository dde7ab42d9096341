"""DiffusionGemma: Gemma 4 as an encoder of text, and as a decoder of canvases of random tokens."""

from __future__ import annotations

import re
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.gemma import gemma4_layers, wide_rope
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, MOST_LAYERS, Mixture
from paradecode.models.parts import Attention
from paradecode.models.weights import Tensor

NAME = "DiffusionGemmaForBlockDiffusion"
DECODER = "renoise"
FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072, "sliding_window": 512, "hidden_activation":
    "gelu_pytorch_tanh", "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
"""Default values of keys; transformers leaves out keys that have their default."""
WIDE, MOST_HEAD = 512, 4096
"""Default and largest size of a head in layers with full attention."""
PERIOD = 6
"""One in this many layers has full attention, unless config.json lists the kinds of layers."""

_LAYER = re.compile(r"model\.decoder\.layers\.(\d{1,4})\.(.+)")
_ENCODER_SCALE = re.compile(r"model\.encoder\.language_model\.layers\.(\d{1,4})\.layer_scalar")
_NAMES = {
    "model.decoder.embed_tokens.weight": "embed", "model.decoder.norm.weight": "norm",
    "model.decoder.self_conditioning.pre_norm.weight": "guess.norm",
    "model.decoder.self_conditioning.gate_proj.weight": "guess.gate",
    "model.decoder.self_conditioning.up_proj.weight": "guess.up",
    "model.decoder.self_conditioning.down_proj.weight": "guess.down",
}  # fmt: skip
_IN_LAYER = {
    "input_layernorm.weight": "attn_norm", "post_attention_layernorm.weight": "after_attn",
    "pre_feedforward_layernorm.weight": "mlp_norm",
    "post_feedforward_layernorm_1.weight": "after_dense",
    "pre_feedforward_layernorm_2.weight": "experts_norm",
    "post_feedforward_layernorm_2.weight": "after_experts",
    "post_feedforward_layernorm.weight": "after_mlp", "layer_scalar": "canvas_scale",
    "router.proj.weight": "router", "router.scale": "router.scale",
    "router.per_expert_scale": "router.gain",
}  # fmt: skip
_IN_LAYER |= {f"self_attn.{name}_proj.weight": name for name in "qkvo"}
_IN_LAYER |= {f"self_attn.{name}_norm.weight": f"{name}_norm" for name in "qk"}
_IN_LAYER |= {f"mlp.{name}_proj.weight": name for name in ("gate", "up", "down")}
SEEN_APART = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
"""Prefixes of the names of weights that read images; they are not used."""


def diffusion_gemma(raw: Metadata, name: str) -> ModelConfig:
    """Return the configuration that config.json describes.

    Raises:
        InvalidModel: a value is missing, out of range or not supported.
    """
    text = raw.get("text_config", {})
    if not isinstance(text, dict):
        raise InvalidModel("text_config", text, "it must be a JSON object")
    values = Metadata({**DEFAULTS, **{k: v for k, v in text.items() if v is not None}})
    if values["hidden_activation"] != "gelu_pytorch_tanh":
        raise InvalidModel("hidden_activation", values["hidden_activation"], "only gelu is known")
    if values.get("use_bidirectional_attention") == "all" or values.flag("attention_bias"):
        fix = "only causal encoders without biases are known"
        raise InvalidModel("use_bidirectional_attention", "all", fix)
    if not (raw.flag("tie_word_embeddings", True) and values.flag("tie_word_embeddings", True)):
        raise InvalidModel("tie_word_embeddings", False, "only models of tied weights are known")
    layers = values.whole("num_hidden_layers", None, 1, MOST_LAYERS)
    full = _full(values, layers)
    sliding, wide = (_rope(values, kind) for kind in (SLIDING, FULL))
    head_dim = values.whole("head_dim", None, 2, MOST_HEAD)
    size, groups = _wide_heads(values, full)
    if sliding["rope_type"] != "default" or wide["rope_type"] not in ("default", "proportional"):
        fix = "use default, and for full_attention default or proportional"
        raise InvalidModel("rope_type", [sliding["rope_type"], wide["rope_type"]], fix)
    heads, theta = values.whole("num_attention_heads"), wide.number("rope_theta", 1e6)
    turned = int(wide.number("partial_rotary_factor", 1.0) * size // 2)
    near = Attention(
        heads, values.whole("num_key_value_heads"), head_dim,
        rope=Rope(sliding.number("rope_theta", 1e4), head_dim),
        window=values.whole("sliding_window", None, 1, 1 << 24),
    )  # fmt: skip
    far = Attention(heads, groups, size, rope=wide_rope(theta, size, turned))
    mixture = Mixture(
        values.whole("num_experts", None, 1, MOST), values.whole("top_k_experts", None, 1, MOST),
        values.whole("moe_intermediate_size", None, 1, MOST), normalised=True, scaled=True,
    )  # fmt: skip
    ends = values["eos_token_id"]
    stack = gemma4_layers(layers, full, near, far, values.whole("intermediate_size"), mixture)
    hidden = values.whole("hidden_size")
    return ModelConfig(
        name, "gemma4", values.whole("vocab_size"), hidden, stack,
        values.whole("max_position_embeddings"), norm_eps=values.number("rms_norm_eps", 1e-6),
        embed_factor=hidden**0.5, tied_head=True,
        softcap=values.number("final_logit_softcapping", 30.0),
        canvas_length=raw.whole("canvas_length", 256, 1), bos_token=values.whole("bos_token_id"),
        eos_tokens=tuple(Metadata(id=one).whole("id") for one in
                         (ends if isinstance(ends, list) else [ends])),
        decoder=DECODER,
    )  # fmt: skip


def _full(values: Metadata, layers: int) -> set[int]:
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % PERIOD else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or {*map(str, kinds)} - {FULL, SLIDING}:
        fix = f"give {layers} of {FULL} and {SLIDING}"
        raise InvalidModel("layer_types", kinds, fix)
    return {i for i, kind in enumerate(kinds) if kind == FULL} | {layers - 1}


def _wide_heads(values: Metadata, full: set[int]) -> tuple[int, int]:
    """Return the size and the number of the key heads in layers with full attention."""
    usual = values.whole("num_key_value_heads")
    size = values.whole("global_head_dim", WIDE, 2, MOST_HEAD)
    groups = values.whole("num_global_key_value_heads", usual)
    own = values.get("per_layer_config")
    if own is None:
        return size, groups
    named = [own.get(str(layer)) for layer in sorted(full)] if isinstance(own, dict) else [None]
    one = named[0]
    if not isinstance(one, dict) or any(each != one for each in named):
        fix = f"all layers of {FULL} must be described alike"
        raise InvalidModel("per_layer_config", own, fix)
    one = Metadata(one)
    return one.whole("head_dim", size, 2, MOST_HEAD), one.whole("num_key_value_heads", groups)


def _rope(values: Metadata, kind: str) -> Metadata:
    usual: dict[str, Any] = {"rope_type": "default"}
    if kind == FULL:
        usual = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    said = values.get("rope_parameters", {})
    own = said.get(kind, usual) if isinstance(said, dict) else None
    if not isinstance(own, dict):
        raise InvalidModel("rope_parameters", said, f"it must say what {kind} has")
    return Metadata({"rope_type": "default", **own})


def separated(stored: str, tensor: Tensor, mixture: Mixture | None) -> list[tuple[str, Tensor]]:
    """Split a stored tensor into our tensors, with their names.

    The result is empty if the tensor does not belong to the layers that read text.

    Args:
        mixture: the configuration's mixture of experts, which says how many experts a tensor has.

    Raises:
        InvalidModel: the tensor is unknown, or does not hold these experts.
    """
    if stored.startswith(SEEN_APART) or stored == "lm_head.weight":
        return []
    if stored in _NAMES:
        return [(_NAMES[stored], tensor)]
    if found := _ENCODER_SCALE.fullmatch(stored):
        return [(f"layers.{int(found[1])}.scale", tensor)]
    found = _LAYER.fullmatch(stored)
    if found is None:
        raise InvalidModel(stored, "tensor", "this model needs an operation that is not known")
    layer, part = f"layers.{int(found[1])}.", found[2]
    if part in _IN_LAYER:
        return [(layer + _IN_LAYER[part], tensor)]
    if part not in ("experts.gate_up_proj", "experts.down_proj"):
        raise InvalidModel(stored, "tensor", "this model needs an operation that is not known")
    experts = 0 if mixture is None else mixture.experts
    if len(tensor.shape) != 3 or tensor.shape[0] != experts:
        raise InvalidModel(stored, tensor.shape, f"give a matrix for each of {experts} experts")
    names, parts = ["down"], [tensor.data]
    if part == "experts.gate_up_proj":
        half = tensor.shape[1] // 2
        names, parts = ["gate", "up"], [tensor.data[:, :half], tensor.data[:, half:]]
    return [
        (f"{layer}experts.{expert}.{name}", Tensor(rows, rows.shape, tensor.kind))
        for name, every in zip(names, parts) for expert, rows in enumerate(every)
    ]  # fmt: skip
