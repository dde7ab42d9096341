"""LoRA adapters in the format of the peft package, merged into their base model at load.

LoRA (Hu et al. 2021, arXiv 2106.09685): a matrix W becomes W + s B A with thin A and B. The scale s
is ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` (rsLoRA, arXiv 2312.03732). DoRA (arXiv
2402.09353) scales each row of the sum to a trained length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.metadata import Metadata, read_json
from paradecode.models.safetensors_dir import canonical, tensors_of, with_tokenizer
from paradecode.models.weights import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LENGTHS = "lora_magnitude_vector"
_NAME = re.compile(rf"base_model\.model\.(.+?)(?:\.(lora_[AB]|{_LENGTHS}))?(\.default)?(\.weight)?")
MOST_RANK = 4096
_UNKNOWN = ("fan_in_fan_out", "lora_bias", "layer_replication", "use_qalora")
"""Settings that change the formula; false and null mean no change."""


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter and no model of its own."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """Return the name or path of the base model; raises InvalidModel if there is none."""
    settings = read_json(folder / CONFIG)
    kind = settings.text("peft_type", "LORA")
    if kind != "LORA":
        fix = f"the folder holds an adapter of the kind {kind}; only LORA is merged"
        raise InvalidModel("peft_type", str(folder), fix)
    base = settings.text("base_model_name_or_path")
    if not base:
        fix = "the folder holds an adapter that names no base; add base_model_name_or_path"
        raise InvalidModel("model", str(folder), fix)
    return base


def merge_adapter(base: Checkpoint, folder: Path) -> Checkpoint:
    """Return the base model with the adapter in ``folder``; changed matrices are float32.

    Tensors that the adapter holds as a whole (``modules_to_save``) replace those of the base. A
    tokenizer in the adapter's folder replaces the base's tokenizer.

    Raises:
        InvalidModel: a file is damaged, or the adapter does not fit the base.
    """
    settings = read_json(folder / CONFIG)
    if not (folder / WEIGHTS).is_file() and any(folder.glob("adapter_model.*")):
        fix = f"pickles can run code; convert the adapter to {WEIGHTS}"
        raise InvalidModel("model", str(folder), fix)
    for key in _UNKNOWN:
        if settings.get(key):
            raise InvalidModel(key, settings[key], "adapters with it are not known; merge it first")
    thin: dict[tuple[str, str], dict[str, Tensor]] = {}
    weights, config = dict(base.weights), base.config
    if config.tied_head:  # Each of the two may change without the other.
        weights["head"] = weights["embed"]
    untied = replace(config, tied_head=False)
    for stored, tensor in tensors_of(folder / WEIGHTS):
        match = _NAME.fullmatch(stored)
        module = match[1].replace(".base_layer", "") if match else ""
        own = canonical(f"{module}.weight", untied) if match else None
        if match is None or own is None or own not in weights:
            raise InvalidModel(stored[:200], "tensor", "the base model has nothing that it fits")
        if part := match[2]:
            thin.setdefault((own, module), {})[part] = tensor
            continue
        if tensor.shape != weights[own].shape:
            fix = f"the base has {weights[own].shape}"
            raise InvalidModel(stored[:200], tensor.shape, fix)
        weights[own] = tensor
    for (own, module), pair in thin.items():
        weights[own] = _merged(module, weights[own], pair, settings)
    if config.tied_head and weights["head"] is weights["embed"]:
        del weights["head"]
    elif config.tied_head:
        config = untied
    config = replace(config, name=folder.resolve().name)
    if (folder / "tokenizer.json").is_file():
        merged = with_tokenizer(folder, config, weights)
        template = merged.chat_template or base.chat_template
        return replace(merged, chat_template=template)
    return replace(base, config=config, weights=weights, source=str(folder))


def _merged(name: str, weight: Tensor, pair: Mapping[str, Tensor], settings: Metadata) -> Tensor:
    parts = ("lora_A", "lora_B", *([_LENGTHS] if settings.flag("use_dora") else []))
    if pair.keys() != set(parts):
        fix = f"the adapter must have {' and '.join(parts)} here, and no other part"
        raise InvalidModel(name, sorted(pair), fix)
    a, b, *lengths = (pair[part].float32() for part in parts)
    fits = a.ndim == b.ndim == 2 and (len(b), *a.shape[1:]) == weight.shape
    if not fits or len(a) != b.shape[1] or len(a) > MOST_RANK:
        raise InvalidModel(name, (b.shape, a.shape), f"the base has {weight.shape}")
    rank = _of(settings, "rank_pattern", name, settings.number("r", 8))
    if rank != len(a):
        raise InvalidModel(name, len(a), f"adapter_config.json says rank {rank:g}")
    alpha = _of(settings, "alpha_pattern", name, settings.number("lora_alpha", 8))
    scale = alpha / (math.sqrt(rank) if settings.flag("use_rslora") else rank)
    values = weight.float32() + np.float32(scale) * (b @ a)
    for wanted in lengths:
        if wanted.size != len(values):
            raise InvalidModel(name, wanted.shape, f"{_LENGTHS} has {len(values)} numbers")
        values *= wanted.reshape(-1, 1) / np.linalg.norm(values, axis=1, keepdims=True)
    return Tensor(values, values.shape)


def _of(settings: Metadata, key: str, name: str, usual: float) -> float:
    """Return the value of the first pattern that matches the end of a matrix's name."""
    patterns: Any = settings.get(key) or {}
    if not isinstance(patterns, dict):
        raise InvalidModel(key, patterns, "give an object of names and numbers")
    for pattern, value in patterns.items():
        # Patterns are names, which some files write as regular expressions; compare them as names.
        plain = pattern.replace("\\", "").strip("^$")
        if name == plain or name.endswith(f".{plain}"):
            return Metadata({key: value}).number(key)
    return usual
