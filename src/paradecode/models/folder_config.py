"""Read a folder's config.json in the same way as transformers' class of the architecture.

A null in this file is a value: it switches an attention window off, and it makes a head's size
follow from other sizes. If the class accepts no null, the file is refused.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, uniform
from paradecode.models.families import BY_CLASS, BY_TYPE, Family
from paradecode.models.folder_rope import context_of, rope_of
from paradecode.models.masked_diffusion import FAMILIES, as_causal
from paradecode.models.metadata import Metadata, read_json
from paradecode.models.mixture import qwen3_moe

MOE = "Qwen3MoeForCausalLM"
ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", MOE: "qwen3",
}  # fmt: skip
_TYPES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": MOE,
}  # fmt: skip
"""``model_type`` -> architecture, for a file that names no architecture."""
CLASSIFIERS = ("ForSequenceClassification", "ForRewardModel")
"""Suffixes of architectures that have ``score`` weights in place of an LM head."""
_LLAMA: dict[str, Any] = {
    "max_position_embeddings": 2048, "num_key_value_heads": None, "head_dim": None,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_QWEN: dict[str, Any] = {
    "max_position_embeddings": 32768, "num_key_value_heads": 32, "use_sliding_window": False,
    "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": {
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "head_dim": None,
        "sliding_window": 4096,
    },
    "Qwen2ForCausalLM": {**_QWEN, "head_dim": None},
    "Qwen3ForCausalLM": {**_QWEN, "head_dim": 128, "attention_bias": False},
    MOE: {
        **_QWEN, "num_key_value_heads": 4, "head_dim": None, "attention_bias": False,
        "max_window_layers": 0, "decoder_sparse_step": 1, "norm_topk_prob": False,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
    },
}  # fmt: skip
"""Class -> keys that config.json may leave out, with their defaults."""
_SHARED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""Further defaults, which all classes share."""
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip
_USUAL = {
    "LlamaForCausalLM": (32000, 4096, 11008, 32, 32),
    "MistralForCausalLM": (32000, 4096, 14336, 32, 32),
    "Qwen2ForCausalLM": (151936, 4096, 22016, 32, 32),
    "Qwen3ForCausalLM": (151936, 4096, 22016, 32, 32),
    MOE: (151936, 2048, 6144, 24, 32),
}
"""Class -> the sizes that are used if config.json leaves them out."""
_SYNONYMS = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size",
}  # fmt: skip
"""The oldest families' names of keys -> the names that all others use."""
_IDS = ("bos_token_id", "eos_token_id")
_OPTIONAL = frozenset(key for keys in _DEFAULTS.values() for key in keys)
_NULLABLE = {
    "LlamaForCausalLM": ("head_dim", "num_key_value_heads"),
    "MistralForCausalLM": ("head_dim", "sliding_window"),
    "Qwen2ForCausalLM": ("head_dim", "num_key_value_heads", "sliding_window"),
    "Qwen3ForCausalLM": ("num_key_value_heads", "sliding_window"),
    MOE: ("sliding_window",),
}
"""Class -> keys for which it accepts null."""


def folder_config(folder: Path, raw: Metadata) -> ModelConfig:
    """Return the configuration of a model with this config.json; raises InvalidModel."""
    named = raw.get("architectures")
    known = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else named
    if known is None:
        known = _TYPES.get(str(raw.get("model_type")))
    known_type = str(raw.get("model_type"))
    generation = folder / "generation_config.json"
    said = _ids(read_json(generation), "eos_token_id") if generation.is_file() else set[int]()
    named_by_type = _TYPES.get(str(raw.get("model_type")), known)
    if isinstance(known, str) and known in ARCHITECTURES and named_by_type != known:
        other = f"architectures names {known}, which is used, although model_type is"
        warnings.warn(f"{other} {str(raw['model_type'])[:80]!r}", stacklevel=2)
    text = raw.get("text_config")
    whole = str(known).endswith(("ForConditionalGeneration", "ForBlockDiffusion"))
    if whole and text is not None and not isinstance(text, dict):
        raise InvalidModel("text_config", text, "it must be a JSON object")
    if whole and text is not None:
        # The text part of a model that also sees pictures or hears. The whole model's flag says
        # whether the LM head is tied, and is true by default.
        ids = {key: raw[key] for key in _IDS if raw.get(key) is not None}
        tied = {"tie_word_embeddings": raw.get("tie_word_embeddings", True)}
        raw = Metadata({**text, **ids, **tied, "canvas_length": raw.get("canvas_length")})
        known, known_type = known if known in BY_CLASS else None, str(text.get("model_type"))
    own = BY_CLASS.get(str(known)) or (BY_TYPE.get(known_type) if known is None else None)
    if own is not None:
        return _of_family(own, folder, raw, said)
    known, raw, differs = as_causal(known, raw, folder)
    for end in CLASSIFIERS:
        if isinstance(known, str) and known.endswith(end):
            known, differs = known.removesuffix(end) + "ForCausalLM", {**differs, "tied_head": True}
    if isinstance(known, str) and known.removesuffix("Model") + "ForCausalLM" in ARCHITECTURES:
        known = known.removesuffix("Model") + "ForCausalLM"  # Saved without an LM head.
    if not isinstance(known, str) or known not in ARCHITECTURES:
        usable = ", ".join([*ARCHITECTURES, *BY_CLASS, *FAMILIES])
        raise InvalidModel("architectures", named, f"use one of {usable}")
    family = ARCHITECTURES[known]
    values = _values(
        known, raw if differs else Metadata({**dict(zip(_SIZES, _USUAL[known])), **raw})
    )
    if values["hidden_act"] != "silu":
        raise InvalidModel("hidden_act", values["hidden_act"], "only silu is known")
    _check_quantization(values)
    heads, hidden = (
        values.whole(key, None, 1, 1 << 16) for key in ("num_attention_heads", "hidden_size")
    )
    head_dim = values.whole("head_dim", hidden // heads, 1, 1024)
    biased, rope = values.flag("attention_bias"), rope_of(values, head_dim)
    # As in transformers. A canvas, which is filled to its end, ends at the ids of all files.
    ends = said or _ids(values, "eos_token_id")
    if differs:
        ends = said | _ids(values, "eos_token_id") | set(differs.pop("eos_tokens", ()))
    fields: dict[str, Any] = {
        "name": folder.resolve().name,
        "architecture": family,
        "vocab_size": values.whole("vocab_size"),
        "hidden_size": hidden,
        "layers": values.whole("num_hidden_layers"),
        "heads": heads,
        "kv_heads": values.whole("num_key_value_heads", heads),
        "head_dim": head_dim,
        "intermediate_size": values.whole("intermediate_size"),
        "context_length": context_of(values, rope),
        "norm_eps": values.number("rms_norm_eps"),
        "rope": rope,
        "tied_head": values.flag("tie_word_embeddings"),
        "qkv_bias": biased or family == "qwen2",
        "output_bias": biased,
        "mlp_bias": values.flag("mlp_bias"),
        "qk_norm": family == "qwen3",
        "sliding_window": _sliding_window(known, values),
        "bos_token": min(_ids(values, "bos_token_id"), default=None),
        "eos_tokens": tuple(sorted(ends)),
    }
    if known == MOE:
        fields |= qwen3_moe(values)
    config = uniform(**(fields | differs))
    config.rope.check_contexts(config.context_length)
    return config


def _of_family(family: Family, folder: Path, raw: Metadata, ends: set[int]) -> ModelConfig:
    """Return the configuration of a family's model.

    Args:
        ends: token ids that end a text, from generation_config.json.

    Raises:
        InvalidModel: a value is missing, out of range or not supported, or it is null and the
            class does not accept that.
    """
    given = {_SYNONYMS.get(key, key): value for key, value in raw.items()}
    for key in family.defaults:
        if key in given and given[key] is None and key not in (*family.nullable, *_IDS):
            raise InvalidModel(key, None, f"{family.classes[0]} takes no null; give a value")
    values = Metadata({**family.defaults, **given})
    _check_quantization(values)
    fields, own = family.fields(values), _ids(values, "eos_token_id")
    ends = ends | own if "canvas_length" in fields else ends or own  # Canvases end at all of them.
    config = ModelConfig(
        name=folder.resolve().name, architecture=family.name,
        bos_token=min(_ids(values, "bos_token_id"), default=None),
        eos_tokens=tuple(sorted(ends)), **fields,
    )  # fmt: skip
    for rope in {part.rope for _, part in config.attentions() if part.rope is not None}:
        rope.check_contexts(config.context_length)
    return config


def _values(known: str, raw: Metadata) -> Metadata:
    """Return the file's values and the class's defaults, without keys that the class lacks.

    Raises:
        InvalidModel: a value is null, and the class does not accept that.
    """
    defaults = {**_SHARED, **_DEFAULTS[known]}
    given = {key: value for key, value in raw.items() if key in defaults or key not in _OPTIONAL}
    if "num_local_experts" in given:  # As transformers saves it since version 5.
        given["num_experts"] = given["num_local_experts"]
    for key in (*defaults, *_SIZES):
        if key in given and given[key] is None and key not in _NULLABLE[known]:
            name = known.removesuffix("ForCausalLM")
            raise InvalidModel(key, None, f"transformers' {name}Config takes no null; give a value")
    return Metadata({**defaults, **given})


def _check_quantization(values: Metadata) -> None:
    """Refuse weights in formats of other engines; a scheme for the K/V cache alone is harmless."""
    given = values.get("quantization_config")
    if given is None or (isinstance(given, dict) and given.get("config_groups") == {}):
        return
    fix = "use the original F16 or BF16 weights, or a GGUF file"
    raise InvalidModel("quantization_config", "set", fix)


def _sliding_window(known: str, values: Metadata) -> int:
    """Return the attention window that all layers share, or 0."""
    mistral = known == "MistralForCausalLM"
    window, layers = values.whole("sliding_window", 0), values.whole("num_hidden_layers")
    kinds = values.get("layer_types")
    if not isinstance(kinds, list) or known.startswith(("Llama", "Mistral")):
        kinds = []
    if kinds and len(kinds) != layers:
        raise InvalidModel(
            "layer_types", f"{len(kinds)} layers", f"num_hidden_layers says {layers}"
        )
    if window == 0 or not (mistral or values.flag("use_sliding_window")):
        return 0
    if kinds:
        sliding = sum(kind == "sliding_attention" for kind in kinds)
    else:
        sliding = layers if mistral else max(layers - values.whole("max_window_layers"), 0)
    if 0 < sliding < layers:
        raise InvalidModel("layer_types", "mixed", "all layers must share one attention window")
    return window if sliding else 0


def _ids(values: Metadata, key: str) -> set[int]:
    """Return token ids that are given as a number, as a list, or not at all."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return {Metadata({key: index}).whole(key) for index in ids}
