"""LLaDA 8B and LLaDA 1.5 (arXiv 2502.09992, 2505.19223): OLMo's code with Llama's blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paradecode.core.errors import InvalidModel, shown
from paradecode.models.diffusion.family import MaskedFamily
from paradecode.models.metadata import Metadata

_SETTINGS = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings", "weight_tying": "tie_word_embeddings",
    "include_bias": "attention_bias", "activation_type": "hidden_act",
}  # fmt: skip
_ALWAYS = {
    "alibi": False, "attention_layer_norm": False, "bias_for_layer_norm": False,
    "block_type": "llama", "clip_qkv": None, "include_qkv_bias": False, "input_emb_norm": False,
    "layer_norm_type": "rms", "layer_norm_with_affine": True, "multi_query_attention": False,
    "rope": True, "scale_logits": False,
}  # fmt: skip
"""Settings of its config.json, with the value that all published models have."""
_LAYER = re.compile(r"model\.transformer\.blocks\.(\d{1,5})\.(\w+)\.(weight|bias)")
_PARTS = {
    "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj", "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}  # fmt: skip
_NAMES = {
    "model.transformer.wte.weight": "model.embed_tokens.weight",
    "model.transformer.ln_f.weight": "model.norm.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
}


def _check(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Raise InvalidModel if a setting differs from all published models; return no fields."""
    for key, usual in _ALWAYS.items():
        if values.get(key) is not None and values[key] != usual:
            raise InvalidModel(key, values[key], f"LLaDA's models have {usual}; others are unknown")
    size = values.get("vocab_size")
    if values.get("embedding_size") not in (None, size):
        fix = f"vocab_size says {shown(size)}"
        raise InvalidModel("embedding_size", values["embedding_size"], fix)
    return {}


def _stored(name: str) -> str | None:
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _PARTS:
        return f"model.layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"
    return _NAMES.get(name)


LLADA = MaskedFamily(
    "LlamaForCausalLM", "full", 126336, "threshold(block_length=32)", eos_tokens=(126081, 126348),
    settings=_SETTINGS, more=_check, stored=_stored,
)  # fmt: skip
