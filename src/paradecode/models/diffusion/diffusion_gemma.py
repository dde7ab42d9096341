"""DiffusionGemma: Gemma 4 as an encoder of text, and as a decoder of canvases of random tokens."""

from __future__ import annotations

import re

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig
from paradecode.models.gemma import gemma4_stack
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import Mixture
from paradecode.models.weights import Tensor

NAME = "DiffusionGemmaForBlockDiffusion"
DECODER = "renoise"
DEFAULTS = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072, "sliding_window": 512, "hidden_activation":
    "gelu_pytorch_tanh", "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
"""Default values of keys; transformers leaves out keys that have their default."""

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
    values |= {"enable_moe_block": True, "attention_k_eq_v": True}
    values |= {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    if not (raw.flag("tie_word_embeddings", True) and values.flag("tie_word_embeddings", True)):
        raise InvalidModel("tie_word_embeddings", False, "only models of tied weights are known")
    stack, hidden, ends = gemma4_stack(values), values.whole("hidden_size"), values["eos_token_id"]
    return ModelConfig(
        name, "diffusion-gemma", values.whole("vocab_size"), hidden, stack,
        values.whole("max_position_embeddings"), norm_eps=values.number("rms_norm_eps", 1e-6),
        embed_factor=hidden**0.5, tied_head=True,
        softcap=values.number("final_logit_softcapping", 30.0),
        canvas_length=raw.whole("canvas_length", 256, 1), bos_token=values.whole("bos_token_id"),
        eos_tokens=tuple(Metadata(id=one).whole("id") for one in
                         (ends if isinstance(ends, list) else [ends])),
        decoder=DECODER,
    )  # fmt: skip


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
