"""Translate the facts of a GGUF file to the keys of config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.models.families.family import GGUF_NAMES, GGUF_OUTSIDE, Family
from paradecode.models.gguf_header import Header
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST_LAYERS
from paradecode.models.rope import Rope

_ASIDE = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Tensors that are facts of the rotary positions."""

FACTS = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps", "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta", "use_parallel_residual": "use_parallel_residual",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "logit_scale": "logits_scaling",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier", "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "full_attention_interval": "full_attention_interval", "ssm.inner_size": "inner_size",
}  # fmt: skip
"""Key of a GGUF file, without the architecture -> key of config.json."""


_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


def own_name(family: Family, stored: str) -> str:
    """Return our name of a tensor in GGUF; empty if it is not read as a weight.

    Raises:
        InvalidModel: the family has no such tensor.
    """
    module, _, kind = stored.rpartition(".")
    end = ".bias" if kind == "bias" else ""
    if kind not in ("weight", "bias"):
        module = stored  # Such as ``ssm_a`` and ``ffn_gate_inp.scale``.
    if module in _ASIDE:
        return ""
    if module in GGUF_OUTSIDE:
        return family.gguf_names.get(module, GGUF_OUTSIDE[module]) + end
    prefix, _, rest = module.partition(".")
    index, _, part = rest.partition(".")
    known = family.gguf_names.get(part, GGUF_NAMES.get(part))
    if known == "router" and end:
        known, end = "router.logit_bias", ""
    if known in ("state_dt_bias", "router.bias"):
        end = ""
    if prefix == "blk" and index.isascii() and index.isdigit() and known is not None:
        return f"layers.{int(index[:8])}.{known}{end}"
    raise InvalidModel(stored, "tensor", "this model needs an operation that is not known")


def layers_in(architecture: str, header: Header) -> int:
    """Return the number of layers, without those that guess a second token.

    Raises:
        InvalidModel: the file's numbers of layers are wrong.
    """
    every = header.fields.whole(f"{architecture}.block_count", None, 1)
    return every - header.fields.whole(f"{architecture}.nextn_predict_layers", 0, 0, every - 1)


def facts_of(
    family: Family, architecture: str, header: Header, names: set[str], rope: Rope
) -> Metadata:
    """Return the facts of a GGUF file under the keys of config.json.

    Args:
        names: our names of the file's tensors; what the tensors say of biases and of the LM head
            is among the facts.
        rope: rotary positions that the file describes.

    Raises:
        InvalidModel: an array has not a value for each of a possible number of layers.
    """
    values: dict[str, Any] = {
        key: value for key, value in family.defaults.items() if key in _ACTIVATIONS
    }
    values |= family.gguf_defaults
    for key, own in {**FACTS, **family.gguf_facts}.items():
        general = key.startswith("diffusion.")
        given = header.fields.get(key if general else f"{architecture}.{key}")
        if given is not None:
            values[own] = _one(f"{architecture}.{key}", given)
    attends = values.get("num_key_value_heads")
    if isinstance(attends, list) and len({*attends} - {0}) == 1:  # 0: the layer keeps a state.
        values["num_key_value_heads"] = max(attends)
        kinds = ["full_attention" if heads else "linear_attention" for heads in attends]
        values["layer_types"] = kinds
    values["num_hidden_layers"] = layers_in(architecture, header)
    biased = any(f"layers.0.{part}.bias" in names for part in ("q", "q+k+v"))
    values |= {
        "vocab_size": header.tensors["token_embd.weight"].shape[0], "rope": rope,
        "tie_word_embeddings": "head" not in names, "attention_bias": biased,
        "use_qkv_bias": biased, "use_bias": biased, "output_bias": "layers.0.o.bias" in names,
        "mlp_bias": "layers.0.up.bias" in names, "gguf": True,
        "tap_bias": any(name.endswith("_taps.bias") for name in names),
        "mamba_rms_norm": any(name.endswith("state_gain") for name in names),
    }  # fmt: skip
    return Metadata(values)


def _one(key: str, value: Any) -> Any:
    """Return a value, or the one value that an array repeats for all layers."""
    if not isinstance(value, np.ndarray):
        return value
    if not 0 < len(value) <= MOST_LAYERS:
        raise InvalidModel(key, value, f"give a value for each of 1 to {MOST_LAYERS} layers")
    return value.tolist() if len({*value.tolist()}) > 1 else value.tolist()[0]
