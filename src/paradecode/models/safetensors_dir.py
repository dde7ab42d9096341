"""Reads a folder in transformers' form: config.json, tokenizer.json, safetensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from paradecode.core.errors import InvalidModel
from paradecode.models.chat import find_template
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.diffusion import diffusion_gemma
from paradecode.models.diffusion.llada2 import stored_in_one
from paradecode.models.folder_tokenizer import read_tokenizer
from paradecode.models.gguf_tokenizer import END_OF_TURN
from paradecode.models.masked_diffusion import FAMILIES, as_causal, stored_as
from paradecode.models.metadata import MAX_LISTING, Metadata, read_json
from paradecode.models.mixture import in_layer, qwen3_moe
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.weights import Kind, Tensor, Weights, check_weights

ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3",
}  # fmt: skip
CLASSIFIERS = ("ForSequenceClassification", "ForRewardModel")
"""Ends of architectures that have ``score`` weights in place of an LM head."""
# Defaults of each family, which transformers does not write to config.json.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    "qwen2": {"max_position_embeddings": 32768},
    "qwen3": {"max_position_embeddings": 32768, "head_dim": 128},
}
_KINDS = {"F32": (Kind.F32, "<f4"), "F16": (Kind.F16, "<f2"), "BF16": (Kind.BF16, "<u2")}
_NAMES = {
    "model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head",
}  # fmt: skip
SCORE = "score."
MAX_HEADER = 1 << 23
"""The most bytes of a safetensors header; a file of 94 layers with 128 experts has 5 million."""
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)")
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm", "post_attention_layernorm.weight": "mlp_norm",
    "self_attn.q_norm.weight": "q_norm", "self_attn.k_norm.weight": "k_norm",
}  # fmt: skip
_MODULES = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
for _module, _name in _MODULES.items():
    _LAYER_NAMES |= {f"{_module}.weight": _name, f"{_module}.bias": f"{_name}.bias"}
_STORED = {own: stored for stored, own in (_NAMES | _LAYER_NAMES).items()}


def read_folder(path: str | Path) -> Checkpoint:
    """Read a model and its tokenizer from a folder; the weights are memory-mapped.

    Raises:
        InvalidModel: a file is missing or damaged, or the architecture, a dtype or the tokenizer
            is not supported; the message names it.
    """
    folder = Path(path)
    return _with_tokenizer(folder, *read_weights(folder))


def read_classifier(path: str | Path) -> tuple[Checkpoint, dict[str, NDArray[np.float32]]]:
    """Read a model that scores texts, from a folder: a checkpoint without an LM head of its own,
    and its ``score.*`` tensors by their stored names. Errors as ``read_folder``."""
    folder = Path(path)
    config, found = stored_tensors(folder)
    weights = {own: tensor for _, own, tensor in found if not own.startswith(SCORE)}
    scores = {own: tensor.float32() for _, own, tensor in found if own.startswith(SCORE)}
    if not scores:
        raise InvalidModel("score.weight", None, "the folder has no weights of a score")
    check_weights(config, weights)
    return _with_tokenizer(folder, config, weights), scores


def _with_tokenizer(folder: Path, config: ModelConfig, weights: Weights) -> Checkpoint:
    tokenizer, template, mask = read_tokenizer(folder)
    highest = tokenizer.highest
    if max(highest + 1, tokenizer.vocab_size) > config.vocab_size:
        said = f"{tokenizer.vocab_size} tokens with ids up to {highest}"
        fix = f"config.json says vocab_size {config.vocab_size}; get the files of one model"
        raise InvalidModel("tokenizer.json", said, fix)
    config = replace(
        config,
        bos_token=config.bos_token if tokenizer.bos is None else tokenizer.bos,
        add_bos=tokenizer.add_bos,
        eos_tokens=tuple(sorted({*config.eos_tokens, *tokenizer.eos_tokens})),
    )
    if config.attention != "causal" or config.mask_token is not None or config.canvas_length:
        config = _diffusion_tokens(config, tokenizer, mask)
    return Checkpoint(config, weights, tokenizer, find_template(template, tokenizer), str(folder))


def _diffusion_tokens(config: ModelConfig, tokenizer: Tokenizer, mask: int | None) -> ModelConfig:
    """The configuration with the mask token, if only the tokenizer's files name it, and with the
    ends of turns."""
    ends = {tokenizer.control[text] for text in END_OF_TURN if text in tokenizer.control}
    if config.gemma is not None:
        return replace(config, eos_tokens=tuple(sorted({*config.eos_tokens, *ends})))
    mask = mask if config.mask_token is None else config.mask_token
    if mask is None:
        fix = "the tokenizer's files name no mask_token; add mask_token_id to config.json"
        raise InvalidModel("mask_token_id", None, fix)
    every = sorted({*config.eos_tokens, *ends} - {mask})
    return replace(config, mask_token=mask, eos_tokens=tuple(every))


def read_weights(path: str | Path) -> tuple[ModelConfig, Weights]:
    """Read only the model, from a folder without a tokenizer. Errors as ``read_folder``."""
    config, found = stored_tensors(Path(path))
    weights: dict[str, Tensor] = {}
    for stored, name, tensor in found:
        if name in weights:
            raise InvalidModel(stored, "twice", "each tensor may be in one shard only")
        weights[name] = tensor
    unknown = sorted(weights.keys() - config.tensors().keys())
    if unknown:
        raise InvalidModel(unknown[0], "tensor", "config.json does not imply it; get good files")
    check_weights(config, weights)
    return config, weights


def stored_tensors(folder: Path) -> tuple[ModelConfig, list[tuple[str, str, Tensor]]]:
    """The configuration, and (stored name, canonical name, tensor) of each weight."""
    config = folder_config(folder, read_json(folder / "config.json"))
    if config.gemma is not None:
        every = [pair for file in shards(folder) for pair in _tensors(file)]
        parts = [(name, diffusion_gemma.separated(name, t, config.mixture)) for name, t in every]
        return config, [(name, own, tensor) for name, those in parts for own, tensor in those]
    found = [pair for file in shards(folder) for pair in _separate(_tensors(file), config)]
    named = [(name, _canonical(name, config), tensor) for name, tensor in found]
    return config, [(name, own, tensor) for name, own, tensor in named if own is not None]


def folder_config(folder: Path, raw: Metadata) -> ModelConfig:
    """The configuration of a model with this config.json; raises InvalidModel."""
    named = raw.get("architectures")
    known = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else named
    generation = folder / "generation_config.json"
    said = _ids(read_json(generation), "eos_token_id") if generation.is_file() else set[int]()
    if known == diffusion_gemma.NAME:
        config = diffusion_gemma.diffusion_gemma(raw, folder.resolve().name)
        return replace(config, eos_tokens=tuple(sorted({*config.eos_tokens, *said})))
    known, raw, differs = as_causal(known, raw, folder)
    for end in CLASSIFIERS:
        if isinstance(known, str) and known.endswith(end):
            known, differs = known.removesuffix(end) + "ForCausalLM", {**differs, "tied_head": True}
    if not isinstance(known, str) or known not in ARCHITECTURES:
        usable = ", ".join([*ARCHITECTURES, *FAMILIES, diffusion_gemma.NAME])
        raise InvalidModel("architectures", named, f"use one of {usable}")
    family = ARCHITECTURES[known]
    values = Metadata({**_DEFAULTS[family], **{k: v for k, v in raw.items() if v is not None}})
    if values.get("hidden_act", "silu") != "silu":
        raise InvalidModel("hidden_act", values["hidden_act"], "only silu is known")
    if "quantization_config" in values:
        raise InvalidModel(
            "quantization_config", "set", "use the original F16 or BF16 weights, or a GGUF file"
        )
    heads, hidden = (
        values.whole(key, None, 1, 1 << 16) for key in ("num_attention_heads", "hidden_size")
    )
    head_dim = values.whole("head_dim", hidden // heads, 1, 1024)
    biased = values.flag("attention_bias") and family in ("llama", "qwen3")
    ends = _ids(values, "eos_token_id") | set(differs.pop("eos_tokens", ())) | said
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
        "context_length": values.whole("max_position_embeddings"),
        "norm_eps": values.number("rms_norm_eps", 1e-6),
        "rope": rope_of(values, head_dim),
        "tied_head": values.flag("tie_word_embeddings"),
        "qkv_bias": biased or family == "qwen2",
        "output_bias": biased,
        "mlp_bias": family == "llama" and values.flag("mlp_bias"),
        "qk_norm": family == "qwen3",
        "sliding_window": _sliding_window(family, values),
        "bos_token": min(_ids(values, "bos_token_id"), default=None),
        "eos_tokens": tuple(sorted(ends)),
    }
    if known == "Qwen3MoeForCausalLM":
        fields |= qwen3_moe(values)
    return ModelConfig(**(fields | differs))


def _sliding_window(family: str, values: Metadata) -> int:
    """The attention window that all layers share, or 0."""
    window = values.whole("sliding_window", 4096 if family == "mistral" else 0)
    on = family == "mistral" or (family != "llama" and values.flag("use_sliding_window"))
    if not on or window == 0:
        return 0
    layers = values.whole("num_hidden_layers")
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and kinds:
        sliding = sum(kind == "sliding_attention" for kind in kinds)
        layers = len(kinds)
    else:
        full = 0 if family == "mistral" else values.whole("max_window_layers", 28)
        sliding = max(layers - full, 0)
    if 0 < sliding < layers:
        raise InvalidModel("layer_types", "mixed", "all layers must share one attention window")
    return window if sliding else 0


def rope_of(values: Metadata, head_dim: int) -> Rope:
    """Rotary parameters in the old (rope_theta, rope_scaling) or new (rope_parameters) style."""
    scaling = values.get("rope_parameters", values.get("rope_scaling", {}))
    if not isinstance(scaling, dict):
        raise InvalidModel("rope_parameters", scaling, "it must be a JSON object")
    scaling = Metadata({**values, **{k: v for k, v in scaling.items() if v is not None}})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    partial = scaling.number("partial_rotary_factor", 1.0)
    rope = Rope(
        theta=scaling.number("rope_theta", 10000.0),
        dim=int(head_dim * partial) if 0 < partial <= 1 else 0,
    )
    if kind == "default":
        return rope
    if kind not in ("linear", "llama3", "yarn"):
        raise InvalidModel("rope_type", kind, "use default, linear, llama3 or yarn")
    factor = scaling.number("factor", 0.0)
    rope = replace(rope, scaling=kind, factor=factor)
    if kind == "linear":
        return rope
    context = values.whole("max_position_embeddings")
    rope = replace(
        rope, original_context=scaling.whole("original_max_position_embeddings", context)
    )
    if kind == "llama3":
        return replace(
            rope,
            low_freq_factor=scaling.number("low_freq_factor", 1.0),
            high_freq_factor=scaling.number("high_freq_factor", 4.0),
        )
    if scaling.get("truncate", True) is not True:
        raise InvalidModel("truncate", scaling["truncate"], "yarn is known with truncation only")
    return replace(
        rope,
        attention_factor=_yarn_attention(scaling, factor),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
    )


def _yarn_attention(scaling: Metadata, factor: float) -> float:
    def gain(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if "attention_factor" in scaling:
        return scaling.number("attention_factor", 1.0)
    above, below = (scaling.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    return gain(above) / gain(below) if above > 0 and below > 0 else gain(1.0)


def _ids(values: Metadata, key: str) -> set[int]:
    """Token ids given as a number, a list or not at all."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return {Metadata({key: index}).whole(key) for index in ids}


def shards(folder: Path) -> list[Path]:
    """The safetensors files of the model, in order; raises InvalidModel."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not index.is_file():
        pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        fix = "pickles can run code; convert it to safetensors" if pickles else "it is missing"
        raise InvalidModel("model", str(folder / "model.safetensors"), fix)
    names = read_json(index, MAX_LISTING).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InvalidModel("weight_map", names, "the index must map tensors to files")
    for name in names.values():
        # Only files of this folder: the index comes from outside.
        if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise InvalidModel("weight_map", name, "shards must be .safetensors of this folder")
    return [folder / name for name in sorted(set(names.values()))]


def mapped(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], NDArray[np.uint8]]]:
    """Name, dtype, shape and memory-mapped bytes of each tensor of a file; raises InvalidModel.

    A shape has no axis below 1: a tensor without numbers could have any number of rows.
    """
    try:
        if not path.is_file():
            raise InvalidModel("model", str(path), "the file is missing; get a complete folder")
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
        if start > MAX_HEADER:
            fix = f"its header is damaged or too large: at most {MAX_HEADER} bytes are read"
            raise InvalidModel("model", str(path), fix)
        # The library checks the header. Its NumPy reader copies and does not support BF16, so the
        # arrays are made here from the checked offsets.
        with safe_open(path, "numpy"):
            pass
        data = np.memmap(path, np.uint8, "r")
        header = json.loads(bytes(data[8:start]))
    except InvalidModel:
        raise
    except (OSError, SafetensorError, RecursionError, ValueError) as error:
        raise InvalidModel("model", str(path), f"the file is damaged: {error}") from None
    header.pop("__metadata__", None)
    for name, entry in header.items():
        shape = tuple(entry["shape"])
        if min(shape, default=1) < 1:
            raise InvalidModel(name, shape, "a tensor must have numbers; get a good file")
        begin, end = (start + offset for offset in entry["data_offsets"])
        yield name, entry["dtype"], shape, np.asarray(data[begin:end])


def _tensors(path: Path) -> list[tuple[str, Tensor]]:
    """Memory-mapped tensors of one file."""
    tensors = []
    for name, stored, shape, raw in mapped(path):
        if stored not in _KINDS:
            raise InvalidModel(name, stored, "convert it to F32, F16 or BF16")
        kind, dtype = _KINDS[stored]
        tensors.append((name, Tensor(raw.view(dtype).reshape(shape), shape, kind)))
    return tensors


def _separate(tensors: list[tuple[str, Tensor]], config: ModelConfig) -> list[tuple[str, Tensor]]:
    """Split tensors that contain queries, keys and values."""
    found = []
    for stored, tensor in tensors:
        names = stored_in_one(stored)
        if names is None:
            found.append((stored, tensor))
            continue
        ends = np.cumsum([config.heads, config.kv_heads, config.kv_heads]) * config.head_dim
        if tensor.shape[:1] != (ends[-1],):
            raise InvalidModel(stored, tensor.shape, f"the configuration implies {ends[-1]} rows")
        parts = np.split(tensor.data, ends[:-1])
        found += [(n, Tensor(p, p.shape, tensor.kind)) for n, p in zip(names, parts, strict=True)]
    return found


def stored_name(name: str) -> str:
    """The name in transformers of a canonical tensor."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        return f"model.layers.{layer}.{_STORED[part]}"
    return _STORED[name]


def _canonical(stored: str, config: ModelConfig) -> str | None:
    """Canonical name of a tensor; None if it is not a weight of its own."""
    stored = stored_as(stored)
    if stored.endswith("rotary_emb.inv_freq") or (stored == "lm_head.weight" and config.tied_head):
        return None
    if stored in _NAMES:
        return _NAMES[stored]
    if stored.startswith(SCORE):
        return stored
    match = _LAYER.fullmatch(stored)
    name = None if match is None else _LAYER_NAMES.get(match[2]) or in_layer(match[2])
    if match is None or name is None:
        raise InvalidModel(stored, "tensor", "this model needs an operation that is not known")
    return f"layers.{int(match[1])}.{name}"
