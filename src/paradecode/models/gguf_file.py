"""Read a GGUF file: raw blocks stay unchanged, names and row order become canonical."""

from __future__ import annotations

import math
import mmap
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel, reason
from paradecode.models.checkpoint import Checkpoint, with_chat
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.families import BY_GGUF, BY_NAME, Family
from paradecode.models.families.family import half_split, separated
from paradecode.models.families.gguf import facts_of, layers_in, own_name
from paradecode.models.gguf_experts import NAMES, mixture_of, single
from paradecode.models.gguf_header import Header, TensorInfo, read_header
from paradecode.models.gguf_tokenizer import optional, templates_of, tokenizer_from_header
from paradecode.models.weights import Kind, Tensor, Weights, check_weights

# The value says whether rotary pairs are interleaved in the file (rows of q and k then need
# reordering to the half-split layout).
INTERLEAVED = {
    "llama": True, "qwen2": False, "qwen3": False, "llada": True, "dream": False,
    "qwen3moe": False, "llada-moe": False, "rnd1": False,
}  # fmt: skip
_CAUSAL = ("llama", "qwen2", "qwen3", "qwen3moe")
_SHIFTED = ("dream", "rnd1")
_DECODER = "threshold(block_length=32)"
"""Default method of models that are not causal."""

_LAYER_NAMES = {
    "attn_norm.weight": "attn_norm", "attn_q.weight": "q", "attn_k.weight": "k",
    "attn_v.weight": "v", "attn_output.weight": "o", "attn_q.bias": "q.bias",
    "attn_k.bias": "k.bias", "attn_v.bias": "v.bias", "attn_output.bias": "o.bias",
    "attn_q_norm.weight": "q_norm", "attn_k_norm.weight": "k_norm", "ffn_norm.weight": "mlp_norm",
    "ffn_gate.weight": "gate", "ffn_up.weight": "up", "ffn_down.weight": "down",
    "ffn_gate.bias": "gate.bias", "ffn_up.bias": "up.bias", "ffn_down.bias": "down.bias",
    **NAMES,
}  # fmt: skip
_NAMES = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
_ROPE_FACTORS = "rope_freqs.weight"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MOST_PARTS = 1024
"""Largest number of files of a model."""
_DTYPES = {Kind.F32: "<f4", Kind.F16: "<f2", Kind.BF16: "<u2"}


def read_gguf(path: str | Path) -> Checkpoint:
    """Read a model from a GGUF file without copying its weights.

    Args:
        path: the file. It stays memory-mapped as long as the weights are used.

    Raises:
        InvalidModel: the file is missing or damaged, or its architecture, a tensor type or the
            tokenizer is unknown; the message names which.
    """
    path = Path(path)
    header = _whole(path)
    kind = header.fields.get("general.type", "model")
    if kind != "model":
        fix = (
            f"the file holds something of the type {str(kind)[:80]}, and no model; get the model's"
        )
        raise InvalidModel("model", str(path), fix)
    if not header.tensors:
        raise InvalidModel("model", str(path), "the file has no weights, but only a vocabulary")
    architecture = header.fields.text("general.architecture")
    if architecture not in INTERLEAVED and architecture not in BY_GGUF:
        known = ", ".join(sorted({*INTERLEAVED, *BY_GGUF}))
        raise InvalidModel("general.architecture", architecture, f"use one of {known}")
    family = BY_GGUF.get(architecture)
    names = _canonical_names(architecture, header)
    tokenizer = tokenizer_from_header(header)
    config = replace(
        _config(path.stem, architecture, header, names)
        if family is None
        else _config_of(family, path.stem, architecture, header, names),
        bos_token=tokenizer.bos,
        add_bos=tokenizer.add_bos,
        eos_tokens=tokenizer.eos_tokens,
    )
    for rope in {part.rope for _, part in config.attentions() if part.rope is not None}:
        rope.check_contexts(config.context_length)
    if tokenizer.vocab_size > config.vocab_size:
        raise InvalidModel(
            "tokenizer.ggml.tokens",
            tokenizer.vocab_size,
            f"the embedding matrix has only {config.vocab_size} rows",
        )
    weights = _weights(config, header, names)
    checkpoint = Checkpoint(config, weights, tokenizer, None, str(path))
    return with_chat(checkpoint, templates_of(header))


def first_part(path: Path) -> Path:
    """Return the first file of a model that is split into several, or else the file."""
    match = _PART.fullmatch(path.name)
    return path if match is None else path.with_name(f"{match[1]}-00001-of-{match[3]}.gguf")


def _whole(path: Path) -> Header:
    """Return the header of a file, with the tensors of all files if the model is split."""
    header = read_header(file_bytes(path))
    count = header.fields.whole("split.count", 0, 0, MOST_PARTS)
    if count < 2:
        return header
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        said = f"it is part {header.fields.whole('split.no', 0) + 1} of {count}"
        fix = f"{said}; name the parts NAME-00001-of-{count:05}.gguf and so on, in one folder"
        raise InvalidModel("model", str(path), fix)
    parts = []
    for number in range(1, count + 1):
        part = path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            fix = f"part {number} of {count} is missing; put all parts into one folder"
            raise InvalidModel("model", str(part), fix)
        parts.append(header if part == path else read_header(file_bytes(part)))
        if parts[-1].fields.whole("split.no", -1) != number - 1:
            raise InvalidModel("split.no", str(part), "the parts of other models are among these")
    tensors: dict[str, TensorInfo] = {}
    for part_header in parts:
        if double := tensors.keys() & part_header.tensors:
            raise InvalidModel(min(double), "twice", "the parts of other models are among these")
        tensors |= part_header.tensors
    wanted = parts[0].fields.whole("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise InvalidModel("split.tensors.count", wanted, f"the parts have {len(tensors)} tensors")
    return Header(parts[0].fields, tensors)


def file_bytes(path: Path) -> memoryview:
    """Return the file's bytes as a read-only memory map."""
    try:
        # Only a regular file: opening a pipe would wait for a writer for ever.
        if not path.is_file():
            raise InvalidModel("model", str(path), "give the path of an existing GGUF file")
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidModel):
            raise
        raise InvalidModel(
            "model", str(path), f"the file cannot be read ({reason(error)})"
        ) from None


def _canonical_names(architecture: str, header: Header) -> dict[str, str]:
    """Return canonical name -> name in the file; an unknown tensor is an error."""
    names: dict[str, str] = {}
    if (family := BY_GGUF.get(architecture)) is not None:
        count = layers_in(architecture, header)
        for name in header.tensors:
            index = name.split(".")[1] if name.startswith("blk.") else ""
            if index.isdecimal() and int(index[:8]) >= count:
                continue  # Layers that guess a second token.
            own = own_name(family, name)
            if own in names:
                raise InvalidModel(name, "twice", "another tensor has the same meaning")
            if own:
                names[own] = name
        return names
    for name in header.tensors:
        if name == _ROPE_FACTORS:
            continue
        canonical = _NAMES.get(name)
        prefix, _, rest = name.partition(".")
        index, _, rest = rest.partition(".")
        if prefix == "blk" and index.isascii() and index.isdigit() and rest in _LAYER_NAMES:
            canonical = f"layers.{int(index[:8])}.{_LAYER_NAMES[rest]}"
        if canonical is None or canonical in names:
            raise InvalidModel(name, "tensor", "this model needs an operation that is not known")
        names[canonical] = name
    return names


def _config(name: str, architecture: str, header: Header, names: dict[str, str]) -> ModelConfig:
    fields = header.fields

    def need(key: str, default: int | None = None) -> int:
        return fields.whole(f"{architecture}.{key}", default)

    if "embed" not in names:
        raise InvalidModel("token_embd.weight", None, "the file lacks it; get a complete file")
    vocabulary = header.tensors[names["embed"]].shape[0]
    hidden, heads = need("embedding_length"), need("attention.head_count")
    if heads < 1:
        raise InvalidModel(f"{architecture}.attention.head_count", heads, "give 1 and more")
    head_dim = need("attention.key_length", hidden // heads)
    if need("attention.value_length", head_dim) != head_dim:
        raise InvalidModel(
            f"{architecture}.attention.value_length", "not key_length", "they must be equal"
        )
    if f"{architecture}.attention.sliding_window_pattern" in header.fields:
        raise InvalidModel("attention.sliding_window_pattern", "set", "use one window for all")
    causal = header.fields.flag(f"{architecture}.attention.causal", architecture in _CAUSAL)
    mixture = mixture_of(architecture, need)
    return uniform(
        name=header.fields.text("general.name") or name,
        architecture=architecture,
        vocab_size=vocabulary,
        hidden_size=hidden,
        layers=need("block_count"),
        heads=heads,
        kv_heads=need("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=need("feed_forward_length", mixture.expert_size if mixture else None),
        context_length=need("context_length"),
        norm_eps=header.fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5),
        rope=rope_in(architecture, header, need("rope.dimension_count", head_dim)),
        tied_head="head" not in names,
        qkv_bias="layers.0.q.bias" in names,
        output_bias="layers.0.o.bias" in names,
        mlp_bias="layers.0.gate.bias" in names,
        qk_norm="layers.0.q_norm" in names,
        mixture=mixture,
        sliding_window=need("attention.sliding_window", 0),
        attention="causal" if causal else "full",
        mask_token=None if causal else optional(fields, "tokenizer.ggml.mask_token_id"),
        shift=header.fields.flag("diffusion.shift_logits", architecture in _SHIFTED),
        decoder="" if causal else _DECODER,
    )


def _config_of(
    family: Family, name: str, architecture: str, header: Header, names: dict[str, str]
) -> ModelConfig:
    """Return the configuration of a family's model."""
    if "embed" not in names:
        raise InvalidModel("token_embd.weight", None, "the file lacks it; get a complete file")
    fields = header.fields
    heads = fields.whole(f"{architecture}.attention.head_count", None, 0, 1 << 16)
    usual = fields.whole(f"{architecture}.embedding_length", None, 1) // max(heads, 1)
    size = fields.whole(f"{architecture}.attention.key_length", usual)
    rope = rope_in(architecture, header, fields.whole(f"{architecture}.rope.dimension_count", size))
    values = facts_of(family, architecture, header, {*names}, rope)
    return ModelConfig(
        name=fields.text("general.name") or name, architecture=family.name, **family.fields(values)
    )


def rope_in(architecture: str, header: Header, dim: int) -> Rope:
    def number(key: str, default: float) -> float:
        return header.fields.number(f"{architecture}.rope.{key}", default)

    rope = Rope(theta=number("freq_base", 10000.0), dim=dim)
    factor = number("scaling.factor", number("scale_linear", 1.0))
    scaling = header.fields.text(
        f"{architecture}.rope.scaling.type", "linear" if factor != 1 else "none"
    )
    if scaling not in ("none", "linear", "yarn"):
        key = f"{architecture}.rope.scaling.type"
        raise InvalidModel(key, scaling, "use a file that says none, linear or yarn")
    if scaling == "none" or (scaling == "linear" and factor == 1):
        factor = 1.0
    if _ROPE_FACTORS in header.tensors:
        if scaling not in ("none", "linear"):
            fix = "it is not known beside rope_freqs.weight; convert the model again"
            raise InvalidModel(f"{architecture}.rope.scaling.type", scaling, fix)
        divisors = _rope_factors(header)[: 1 << 12].astype(np.float64) * factor
        return replace(rope, factors=tuple(divisors.tolist()))
    if factor == 1 and scaling in ("none", "linear"):
        return rope
    rope = replace(rope, scaling=str(scaling), factor=factor)
    context = header.fields.number(f"{architecture}.context_length", 8192)
    if scaling != "yarn" or not factor > 0:
        return rope
    yarn_gain = 1 + 0.1 * math.log(max(factor, 1.0))
    return replace(
        rope,
        original_context=int(number("scaling.original_context_length", context)),
        # llama.cpp multiplies the stored factor by yarn's own; the canonical factor is the product.
        attention_factor=number("scaling.attn_factor", 1.0) * yarn_gain,
        beta_fast=number("scaling.yarn_beta_fast", 32.0),
        beta_slow=number("scaling.yarn_beta_slow", 1.0),
    )


def _rope_factors(header: Header) -> NDArray[np.float32]:
    """Return the divisors of the rotated pairs' angles; empty if the file has none."""
    if _ROPE_FACTORS not in header.tensors:
        return np.empty(0, np.float32)
    return tensor_in(header.tensors[_ROPE_FACTORS]).float32().ravel()


def tensor_in(info: TensorInfo) -> Tensor:
    """Return a tensor of the file as a view."""
    raw = np.frombuffer(info.data, np.uint8)
    if info.kind in _DTYPES:
        return Tensor(raw.view(_DTYPES[info.kind]).reshape(info.shape), info.shape, info.kind)
    block, size = GGML_QUANT_SIZES[info.kind]
    return Tensor(raw.reshape(-1, info.shape[-1] // block * size), info.shape, info.kind)


def _weights(config: ModelConfig, header: Header, names: dict[str, str]) -> Weights:
    weights = {
        own: tensor
        for name, stored in names.items()
        for own, tensor in single(name, tensor_in(header.tensors[stored]), config.mixture)
    }
    family = BY_NAME.get(config.architecture)
    if family is not None:
        shapes = config.tensors()
        weights = {
            own: made
            for name, tensor in weights.items()
            for own, made in separated(family, config, shapes, name, tensor, folder=False)
        }
    unknown = sorted(weights.keys() - config.tensors().keys())
    if unknown:
        raise InvalidModel(unknown[0], "tensor", "the other layers do not have it; get a good file")
    check_weights(config, weights)
    if INTERLEAVED.get(config.architecture):
        if config.qk_norm:
            raise InvalidModel("attn_q_norm", "tensor", "llama models have no norm of queries")
        for name, heads in (("q", config.heads), ("k", config.kv_heads)):
            order = half_split(heads, config.head_dim, config.rope.dim)
            for layer in range(config.layers):
                for part in (f"layers.{layer}.{name}", f"layers.{layer}.{name}.bias"):
                    if part in weights:
                        weights[part] = weights[part].rows(order)
    return weights
