"""Read a folder in transformers' format: config.json, tokenizer.json, safetensors."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from paradecode.core.errors import InvalidModel
from paradecode.models.checkpoint import Checkpoint, with_chat
from paradecode.models.config import ModelConfig
from paradecode.models.diffusion.llada2 import stored_in_one
from paradecode.models.families import BY_NAME, Family
from paradecode.models.families.family import separated
from paradecode.models.folder_config import folder_config
from paradecode.models.folder_tokenizer import read_tokenizer
from paradecode.models.gguf_experts import single
from paradecode.models.gguf_tokenizer import END_OF_TURN
from paradecode.models.masked_diffusion import stored_as
from paradecode.models.metadata import MAX_LISTING, read_json
from paradecode.models.mixture import in_layer
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.weights import Kind, Tensor, Weights, check_weights

_KINDS = {"F32": (Kind.F32, "<f4"), "F16": (Kind.F16, "<f2"), "BF16": (Kind.BF16, "<u2")}
_NAMES = {
    "model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head",
}  # fmt: skip
SCORE = "score."
_HEAD, _EMBED = "lm_head.weight", ("model.embed_tokens.weight", "embed_tokens.weight")
_BARE = ("embed_tokens", "layers", "norm")
"""Prefixes of names in folders of a network without its LM head, which leave out ``model.``."""
INFILLED = ("<mask_1>", "<sep>", "<eom>")
"""Tokens of CodeGen2 (arXiv 2305.02309), which writes the last one at the end of a filled gap."""
_UNUSED = re.compile(r"rotary_emb\.inv_freq$|\.(?:[qkv]|kv|prob)_scale$|[qkv]_proj\.output_scale$")
"""Tensors that are not weights: frequencies, and the scales of other engines' 8-bit caches."""
MAX_HEADER = 1 << 23
"""Largest size of a safetensors header in bytes; 94 layers with 128 experts need 5 million."""
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
        InvalidModel: a file is missing or damaged, or the architecture, a dtype or the tokenizer is
            not supported; the message names it.
    """
    folder = Path(path)
    return with_tokenizer(folder, *read_weights(folder))


def read_classifier(path: str | Path) -> tuple[Checkpoint, dict[str, NDArray[np.float32]]]:
    """Read a model that scores texts from a folder; errors as ``read_folder``.

    Returns:
        A checkpoint without an LM head of its own, and its ``score.*`` tensors by stored name.
    """
    folder = Path(path)
    config, found = stored_tensors(folder)
    weights = {own: tensor for _, own, tensor in found if not own.startswith(SCORE)}
    scores = {own: tensor.float32() for _, own, tensor in found if own.startswith(SCORE)}
    if not scores:
        raise InvalidModel("score.weight", None, "the folder has no weights of a score")
    check_weights(config, weights)
    return with_tokenizer(folder, config, weights), scores


def with_tokenizer(folder: Path, config: ModelConfig, weights: Weights) -> Checkpoint:
    """Add the tokenizer and chat template in ``folder`` to a model. Errors as ``read_folder``."""
    tokenizer, sources, mask = read_tokenizer(folder, config.vocab_size)
    highest = tokenizer.highest
    if max(highest + 1, tokenizer.vocab_size) > config.vocab_size:
        said = f"{tokenizer.vocab_size} tokens with ids up to {highest}"
        fix = f"config.json says vocab_size {config.vocab_size}; get the files of one model"
        raise InvalidModel("tokenizer.json", said, fix)
    config = replace(
        config,
        bos_token=config.bos_token if tokenizer.bos is None else tokenizer.bos,
        add_bos=tokenizer.add_bos,
        eos_tokens=config.eos_tokens or tokenizer.eos_tokens,
    )
    if config.attention != "causal" or config.mask_token is not None or config.canvas_length:
        config = _diffusion_tokens(config, tokenizer, mask)
    *marks, end = map(tokenizer.token_id, INFILLED)
    if end is not None and None not in marks:
        config = replace(config, eos_tokens=tuple(sorted({*config.eos_tokens, end})))
    tokenizer.eos_tokens = config.eos_tokens
    return with_chat(Checkpoint(config, weights, tokenizer, None, str(folder)), sources)


def _diffusion_tokens(config: ModelConfig, tokenizer: Tokenizer, mask: int | None) -> ModelConfig:
    """Return the configuration with the mask token and the tokens that end a turn.

    The tokenizer's files give the mask token if config.json does not.
    """
    ends = {tokenizer.control[text] for text in END_OF_TURN if text in tokenizer.control}
    ends |= {*tokenizer.eos_tokens}
    if config.canvas_length:
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
    if "head" not in weights and not config.tied_head and weights:
        fix = "the folder holds a network without its LM head (saved by AutoModel, for example)"
        raise InvalidModel("lm_head.weight", None, f"{fix}, and config.json does not tie it")
    check_weights(config, weights)
    return config, weights


def stored_tensors(folder: Path) -> tuple[ModelConfig, list[tuple[str, str, Tensor]]]:
    """Return the configuration, and (stored name, canonical name, tensor) of each weight."""
    config = folder_config(folder, read_json(folder / "config.json"))
    if (family := BY_NAME.get(config.architecture)) is not None:
        return _of_family(family, config, [pair for file in shards(folder)
                                           for pair in tensors_of(file)])  # fmt: skip
    found = [pair for file in shards(folder) for pair in _separate(tensors_of(file), config)]
    config, found = _with_head(config, found)
    named = [(name, canonical(name, config), tensor) for name, tensor in found]
    return config, [(name, own, tensor) for name, own, tensor in named if own is not None]


def _of_family(
    family: Family, config: ModelConfig, stored: list[tuple[str, Tensor]]
) -> tuple[ModelConfig, list[tuple[str, str, Tensor]]]:
    """Return the configuration, and (stored name, canonical name, tensor) of each weight."""
    named = [(name, family.canonical(name), tensor) for name, tensor in stored]
    own = {canonical: tensor for _, canonical, tensor in named}
    if config.tied_head and "head" in own:
        embed = own.get("embed")
        if embed is not None and not np.array_equal(own["head"].float32(), embed.float32()):
            said = f"{config.name}: tie_word_embeddings is true, but the LM head differs from the"
            warnings.warn(f"{said} embedding; it is used as the file has it", stacklevel=5)
            config = replace(config, tied_head=False)
        else:
            named = [entry for entry in named if entry[1] != "head"]

    shapes = config.tensors()

    def experts_of(canonical: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        dealt = re.search(r"experts\.\d", canonical) is not None
        return iter([(canonical, tensor)]) if dealt else single(canonical, tensor, config.mixture)

    return config, [
        (name, one, made)
        for name, canonical, tensor in named if canonical and not _UNUSED.search(name)
        for part, whole in (family.split or experts_of)(canonical, tensor)
        for one, made in separated(family, config, shapes, part, whole, folder=True)
    ]  # fmt: skip


def _with_head(
    config: ModelConfig, found: list[tuple[str, Tensor]]
) -> tuple[ModelConfig, list[tuple[str, Tensor]]]:
    """Choose the LM head like transformers, if the file has one although the flag says it is tied.

    A head that differs from the embedding is used, with a warning. If there is no embedding, the
    head is the embedding.
    """
    named = {name: tensor for name, tensor in found if name in (_HEAD, *_EMBED)}
    scores = any(name.startswith(SCORE) for name, _ in found)
    if scores or not config.tied_head or _HEAD not in named:
        return config, found
    embed = next((named[name] for name in _EMBED if name in named), None)
    if embed is None:
        return config, [(_EMBED[0] if name == _HEAD else name, tensor) for name, tensor in found]
    head = named[_HEAD]
    if head.shape == embed.shape and np.array_equal(head.float32(), embed.float32()):
        return config, found
    said = f"{config.name}: tie_word_embeddings is true, but lm_head.weight differs from the"
    warnings.warn(f"{said} embedding; it is used as the file has it", stacklevel=5)
    return replace(config, tied_head=False), found


def shards(folder: Path) -> list[Path]:
    """Return the safetensors files of the model, in order; raises InvalidModel."""
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
        # Accept only files of this folder: the index is untrusted.
        if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise InvalidModel("weight_map", name, "shards must be .safetensors of this folder")
    return [folder / name for name in sorted(set(names.values()))]


def mapped(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], NDArray[np.uint8]]]:
    """Yield name, dtype, shape and memory-mapped bytes of each tensor of a file.

    A shape has no axis below 1: a tensor without numbers could have any number of rows.

    Raises:
        InvalidModel: the file is missing or damaged.
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


def tensors_of(path: Path) -> list[tuple[str, Tensor]]:
    """Return the memory-mapped tensors of one file."""
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
    """Return transformers' name of a canonical tensor."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        return f"model.layers.{layer}.{_STORED[part]}"
    return _STORED[name]


def canonical(stored: str, config: ModelConfig) -> str | None:
    """Return the canonical name of a tensor; None if it is not a weight of its own."""
    stored = stored_as(stored)
    if stored.partition(".")[0] in _BARE:
        stored = f"model.{stored}"
    if _UNUSED.search(stored) or (stored == "lm_head.weight" and config.tied_head):
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
