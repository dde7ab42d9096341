"""Masked diffusion models in folders: their names, and facts that their config.json lacks.

Each is a causal architecture with another attention. The facts are those of the published models:
LLaDA (arXiv 2502.09992), Dream (2508.15487), SDAR (2510.06303), Fast-dLLM v2 (2509.26328),
LLaDA-MoE (2509.24389), LLaDA2 (2512.15745).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import llada2, llada_moe


@dataclass(frozen=True)
class Family:
    """One published family.

    Attributes:
        like: transformers' name of the architecture that differs only in the attention.
        attention, block_length, shift: see :class:`paradecode.models.config.ModelConfig`.
        mask_token: if config.json does not name it.
        eos_tokens: ids that end a text, beside those of the files.
        settings: keys of its config.json -> ours.
        defaults: values for missing keys that differ from those of the causal architecture.
        more: reads further fields of a ``ModelConfig`` from config.json.
    """

    like: str
    attention: str
    mask_token: int
    block_length: int = 0
    shift: bool = False
    eos_tokens: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[Metadata], dict[str, Any]] = lambda values: {}


LLADA_SETTINGS = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings", "weight_tying": "tie_word_embeddings",
    "include_bias": "attention_bias", "activation_type": "hidden_act",
}  # fmt: skip
LLADA_ALWAYS = {
    "alibi": False, "attention_layer_norm": False, "bias_for_layer_norm": False,
    "block_type": "llama", "clip_qkv": None, "include_qkv_bias": False, "input_emb_norm": False,
    "layer_norm_type": "rms", "layer_norm_with_affine": True, "multi_query_attention": False,
    "rope": True, "scale_logits": False,
}  # fmt: skip
"""Switches of LLaDA's code, with the value that all published models have."""
FAMILIES = {
    "LLaDAModelLM": Family(
        "LlamaForCausalLM", "full", 126336, eos_tokens=(126081, 126348), settings=LLADA_SETTINGS
    ),
    "DreamModel": Family(
        "Qwen2ForCausalLM", "full", 151666, shift=True, eos_tokens=(151643, 151645)
    ),
    "SDARForCausalLM": Family(
        "Qwen3ForCausalLM", "block", 151669, block_length=4, eos_tokens=(151643, 151645),
        settings={"block_size": "block_length"},
    ),
    "Fast_dLLM_QwenForCausalLM": Family(
        "Qwen2ForCausalLM", "block", 151665, block_length=32, shift=True, eos_tokens=(151645,),
        settings={"bd_size": "block_length"},
    ),
    "LLaDAMoEModelLM": Family(
        "LlamaForCausalLM", "full", 156895, eos_tokens=(156892,),
        settings={"dense_intermediate_size": "intermediate_size"},
        defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}, more=llada_moe,
    ),
    "LLaDA2MoeModelLM": Family(
        "LlamaForCausalLM", "block", 156895, block_length=32, eos_tokens=(156892,),
        defaults={
            "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
        }, more=llada2,
    ),
}  # fmt: skip
"""Name in ``architectures`` -> facts."""

_LLADA_LAYER = re.compile(r"model\.transformer\.blocks\.(\d{1,5})\.(\w+)\.(weight|bias)")
_LLADA_PARTS = {
    "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj", "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}  # fmt: skip
_NAMES = {
    "model.transformer.wte.weight": "model.embed_tokens.weight",
    "model.transformer.ln_f.weight": "model.norm.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
    "model.word_embeddings.weight": "model.embed_tokens.weight",
}
_LLADA2_LAYER = re.compile(r"(model\.layers\.\d{1,5}\.)attention\.(\w+)\.(weight|bias)")
_LLADA2_PARTS = {
    "dense": "self_attn.o_proj", "query_layernorm": "self_attn.q_norm",
    "key_layernorm": "self_attn.k_norm",
}  # fmt: skip


def as_causal(name: object, raw: Metadata) -> tuple[object, Metadata, dict[str, Any]]:
    """The causal architecture that a configuration is like.

    Args:
        name: the first of ``architectures``.
        raw: config.json.

    Returns:
        Its name, its settings, and the fields of a ``ModelConfig`` that differ. The config.json of
        any architecture may give ``attention``, ``block_length`` and ``shift``.

    Raises:
        InvalidModel: if the mask token is outside of the vocabulary, two keys contradict each
            other, or a setting is not supported.
    """
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None and "attention" not in raw:
        return name, raw, {}
    known = family or Family(str(name), "causal", -1)
    for theirs, ours in known.settings.items():
        if theirs in raw and raw.get(ours, raw[theirs]) != raw[theirs]:
            raise InvalidModel(ours, raw[ours], f"{theirs} says {raw[theirs]}; keep one of the two")
    given = {known.settings.get(key, key): value for key, value in raw.items()}
    values = Metadata({**known.defaults, **given})
    if known.settings is LLADA_SETTINGS:
        _check_llada(raw)
    size = values.whole("vocab_size")
    mask = values.whole("mask_token_id", known.mask_token, 0, size - 1)
    differs = {
        "attention": values.get("attention", known.attention),
        "block_length": values.whole("block_length", known.block_length),
        "shift": values.flag("shift", known.shift),
        "mask_token": mask,
        "eos_tokens": tuple(token for token in known.eos_tokens if token < size),
    }
    return known.like, values, differs | known.more(values)


def _check_llada(raw: Mapping[str, Any]) -> None:
    for key, usual in LLADA_ALWAYS.items():
        if raw.get(key) is not None and raw[key] != usual:
            raise InvalidModel(key, raw[key], f"LLaDA's models have {usual}; others are not known")
    size = raw.get("vocab_size")
    if raw.get("embedding_size") not in (None, size):
        raise InvalidModel("embedding_size", raw["embedding_size"], f"vocab_size says {size}")


def stored_as(name: str) -> str:
    """The name of a stored tensor in the causal architecture."""
    match = _LLADA_LAYER.fullmatch(name)
    if match is not None and match[2] in _LLADA_PARTS:
        return f"model.layers.{match[1]}.{_LLADA_PARTS[match[2]]}.{match[3]}"
    match = _LLADA2_LAYER.fullmatch(name)
    if match is not None and match[2] in _LLADA2_PARTS:
        return f"{match[1]}{_LLADA2_PARTS[match[2]]}.{match[3]}"
    return _NAMES.get(name, name)


def stored_in_one(name: str) -> tuple[str, str, str] | None:
    """The names of queries, keys and values, whose rows LLaDA2 stores in one tensor, in this order.

    None for other tensors.
    """
    match = _LLADA2_LAYER.fullmatch(name)
    if match is None or match[2] != "query_key_value":
        return None
    q, k, v = (f"{match[1]}self_attn.{part}_proj.{match[3]}" for part in "qkv")
    return q, k, v
