"""Read a folder's config.json in the same way as transformers' class of the architecture.

A null in this file is a value: it switches an attention window off, and it makes a head's size
follow from other sizes. If the class accepts no null, the file is refused.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.diffusion import diffusion_gemma
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
_ORIGINAL = "original_max_position_embeddings"
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
    generation = folder / "generation_config.json"
    said = _ids(read_json(generation), "eos_token_id") if generation.is_file() else set[int]()
    if known == diffusion_gemma.NAME:
        config = diffusion_gemma.diffusion_gemma(raw, folder.resolve().name)
        return replace(config, eos_tokens=tuple(sorted({*config.eos_tokens, *said})))
    named_by_type = _TYPES.get(str(raw.get("model_type")), known)
    if isinstance(known, str) and known in ARCHITECTURES and named_by_type != known:
        other = f"architectures names {known}, which is used, although model_type is"
        warnings.warn(f"{other} {str(raw['model_type'])[:80]!r}", stacklevel=2)
    known, raw, differs = as_causal(known, raw, folder)
    for end in CLASSIFIERS:
        if isinstance(known, str) and known.endswith(end):
            known, differs = known.removesuffix(end) + "ForCausalLM", {**differs, "tied_head": True}
    if isinstance(known, str) and known.removesuffix("Model") + "ForCausalLM" in ARCHITECTURES:
        known = known.removesuffix("Model") + "ForCausalLM"  # Saved without an LM head.
    if not isinstance(known, str) or known not in ARCHITECTURES:
        usable = ", ".join([*ARCHITECTURES, *FAMILIES, diffusion_gemma.NAME])
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
        "context_length": _context(values, rope),
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


def rope_of(values: Metadata, head_dim: int) -> Rope:
    """Return rotary parameters in the old (rope_theta, rope_scaling) or new (rope_parameters) form.

    As in transformers, ``rope_scaling`` overrides ``rope_parameters``, and these override keys of
    the file itself. Only the file's own ``original_max_position_embeddings`` overrides theirs.
    """
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise InvalidModel("rope_parameters", scaling, "it must be a JSON object")
    if any(isinstance(inner, dict) for inner in scaling.values()):
        fix = "one set of parameters for all layers is known"
        raise InvalidModel("rope_parameters", "a set for each kind of layer", fix)
    outer = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if key in values}
    if outer.get("partial_rotary_factor", 1) is None:
        outer.pop("partial_rotary_factor")
    scaling = Metadata({"rope_theta": 10000.0, "partial_rotary_factor": 1.0} | outer | scaling)
    if _ORIGINAL in values:
        scaling[_ORIGINAL] = values[_ORIGINAL]
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    partial = scaling.number("partial_rotary_factor")
    rope = Rope(
        theta=scaling.number("rope_theta"),
        dim=int(head_dim * partial) if 0 < partial <= 1 else 0,
    )
    if kind == "default":
        return rope
    if kind not in ("linear", "llama3", "yarn", "dynamic", "longrope"):
        raise InvalidModel(
            "rope_type", kind, "use default, linear, dynamic, llama3, yarn or longrope"
        )
    if kind in ("linear", "dynamic"):
        factor = scaling.number("factor")
        # The other one changes nothing up to the end of the context.
        return replace(rope, scaling=kind, factor=factor) if kind == "linear" else rope
    context = values.whole("max_position_embeddings")
    scaling.setdefault(_ORIGINAL, context)
    original = scaling.whole(_ORIGINAL, None, 1)
    if kind == "longrope":
        return _longrope(rope, scaling, context, original)
    if kind == "llama3":
        return replace(
            rope,
            scaling=kind,
            factor=scaling.number("factor"),
            original_context=original,
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
        )
    if "factor" not in scaling:
        raise InvalidModel("factor", None, "yarn needs it")
    factor = scaling.number("factor", context / original)
    return replace(
        rope,
        scaling=kind,
        factor=factor,
        original_context=original,
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention(scaling, factor),
        # As in transformers, 0 means the default, too.
        beta_fast=scaling.number("beta_fast", 32.0) or 32.0,
        beta_slow=scaling.number("beta_slow", 1.0) or 1.0,
    )


def _context(values: Metadata, rope: Rope) -> int:
    """Return the largest length up to which the first token's angles stay the same."""
    context = values.whole("max_position_embeddings")
    if rope.scaling != "longrope" or rope.original_context >= context:
        return context
    known = rope.original_context
    said = f"rope: of {context} positions the first {known} are used: longer texts have other"
    warnings.warn(f"{said} angles in longrope", stacklevel=3)
    return known


def _longrope(rope: Rope, scaling: Metadata, context: int, original: int) -> Rope:
    """Return the rotary parameters of LongRoPE (arXiv 2402.13753) within the original context.

    A longer text uses other factors for all of its tokens, so cached rows would be wrong.
    """
    for key in ("short_factor", "long_factor"):
        factors = scaling.get(key)
        if not isinstance(factors, list) or len(factors) != rope.dim // 2:
            raise InvalidModel(key, factors, f"longrope needs a list of {rope.dim // 2} numbers")
    short = [Metadata(short_factor=one).number("short_factor") for one in scaling["short_factor"]]
    factor = scaling.number("factor", context / original)
    gain = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return replace(
        rope, scaling="longrope", factors=tuple(short), original_context=original,
        attention_factor=scaling.number("attention_factor", gain),
    )  # fmt: skip


def _yarn_attention(scaling: Metadata, factor: float) -> float:
    def gain(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor", 1.0)
    above, below = (scaling.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    return gain(above) / gain(below) if above and below else gain(1.0)


def _ids(values: Metadata, key: str) -> set[int]:
    """Return token ids that are given as a number, as a list, or not at all."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return {Metadata({key: index}).whole(key) for index in ids}
