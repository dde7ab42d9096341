"""Folders of draft heads: config.json and one file of tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as to_bytes

from paradecode.core.errors import InvalidModel, reason
from paradecode.models.heads.gguf_drafts import read_gguf_draft
from paradecode.models.heads.layouts import LONGSPEC, HeadFile, Tensors, module_start, recognise
from paradecode.models.metadata import read_json
from paradecode.models.safetensors_dir import mapped, shards

MOST_BYTES = 1 << 33
NAMES = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin",
         "medusa_lm_head.pt", "adapter_model.safetensors", "adapter_model.bin")  # fmt: skip
_PROMPTS = "adapter_config.json"
_SCALE = "_scale"
_PASSED = {"hidden-transfer": "transfer_layers", "m2r2": "stream_layers"}
"""Kinds of heads without sizes of their own -> the setting that names the target's layers that they
enter."""
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "BOOL": "?",
           "I8": "i1"}  # fmt: skip


def read_head(path: str | os.PathLike[str]) -> HeadFile:
    """Read a folder of a kind that ``Head`` runs, or a GGUF draft.

    If the folder holds a whole model with a module for multi-token prediction, only the module is
    read.

    Raises:
        InvalidModel: a file is missing or damaged, or the head is of an unknown kind.
    """
    folder = Path(path)
    if folder.suffix == ".gguf":
        return _finite(read_gguf_draft(folder), folder)
    config = read_json(folder / ("config.json" if not (folder / _PROMPTS).is_file() else _PROMPTS))
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if found:
        pickled = found[0].suffix != ".safetensors"
        loaded = _pickled(found[0]) if pickled else _safetensors(found[:1])
    elif (folder / "model.safetensors.index.json").is_file():
        loaded = _safetensors(shards(folder))
    else:
        raise InvalidModel("head", str(folder), f"it holds none of {', '.join(NAMES)}")
    return _finite(recognise(config, _in_full(loaded)), folder)


def _finite(head: HeadFile, where: Path) -> HeadFile:
    for name, values in head.tensors.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InvalidModel(name, str(where), "it has numbers that are NaN or infinite")
    return head


def write_head(
    head: HeadFile, path: str | os.PathLike[str], config: Mapping[str, Any], layout: str = "eagle3",
    bits: int = 16,
) -> None:  # fmt: skip
    """Write a head so that other engines can read it.

    Args:
        config: the target's config.json in transformers' form (``hidden_size``, ``vocab_size``).
        layout: ``eagle3`` (the folders of SafeAILab/EAGLE, or of Medusa and Clover for their heads)
            or ``speculators`` (EAGLE-3 and P-EAGLE).
        bits: 8 rounds each row of a matrix to 8 bits with a scale, in a file that only this engine
            reads; otherwise tensors are stored unchanged.

    Raises:
        InvalidModel: the layout cannot hold a head of this kind.
    """
    three = head.kind in ("eagle3", "p-eagle")
    if layout not in ("eagle3", "speculators") or (layout == "speculators" and not three):
        raise InvalidModel("layout", f"{head.kind} as {layout}", "use eagle3")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if bits == 8:
        head = replace(head, tensors=_in_8_bits(head.tensors))
    if head.kind == "medusa":
        blocks = [name.split(".") for name in head.tensors if name.endswith(".linear.weight")]
        whole = {"medusa_num_heads": 1 + max(int(name[0]) for name in blocks),
                 "medusa_num_layers": 1 + max(int(name[1]) for name in blocks),
                 "base_model_name_or_path": head.verifier}  # fmt: skip
        _write(folder / "medusa_lm_head.safetensors", head.tensors, whole)
        return
    if head.kind == "ppd":
        count = len(head.tensors["prompt_embeddings"])
        whole = {"peft_type": "PROMPT_TUNING", "num_special_tokens": count,
                 "virtual_tokens_per_special_token": 1,
                 "base_model_name_or_path": head.verifier}  # fmt: skip
        _write(folder / "adapter_model.safetensors", head.tensors, whole, _PROMPTS)
        return
    if head.kind in _PASSED:
        whole = {**config, _PASSED[head.kind]: [tap + 1 for tap in head.taps],
                 "base_model_name_or_path": head.verifier}  # fmt: skip
        _write(folder / "model.safetensors", head.tensors, whole)
        return
    sizes = {
        **config,
        "num_hidden_layers": len(
            [n for n in head.tensors if n.endswith("self_attn.q_proj.weight")]
        ),
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_dim,
        "rms_norm_eps": head.epsilon,
        **_rope(head),
    }
    if "layers.0.mlp.gate_proj.weight" in head.tensors:
        sizes["intermediate_size"] = len(head.tensors["layers.0.mlp.gate_proj.weight"])
    if head.kind == "kangaroo":
        sizes["exit_layer"] = head.taps[0] + 1
    if not three:
        if head.kind == "chimera":
            levels = sum(name.endswith(".0.weight") for name in head.tensors)
            sizes["chimera"] = {"num_heads": levels}
        if head.kind == "falcon":
            sizes["k_mask"] = head.block_size
        if head.kind == "flexdraft":
            sizes["block_size"] = head.block_size
            calibrated = "anchor_bias_mlp.0.weight" in head.tensors
            sizes["flexdraft_config"] = {"target_layer_ids": [tap + 1 for tap in head.taps],
                                         "enable_anchor_bias_logits": calibrated}  # fmt: skip
        if head.kind in ("clover", "clover-2"):
            levels = sum(name.endswith(".0.linear.weight") for name in head.tensors)
            sizes["clover"] = {"num_heads": levels or 5, "num_layers": sizes["num_hidden_layers"]}
        named = {_their_name(head.kind, name): t for name, t in head.tensors.items()}
        _write(folder / "model.safetensors", named, sizes)
        return
    flags: dict[str, Any] = {
        "draft_vocab_size": len(head.tensors["d2t" if "d2t" in head.tensors else "lm_head.weight"]),
        "norm_before_residual": head.normed_residual,
        "norm_before_fc": "input_norm.weight" in head.tensors,
        "norm_output": head.feeds_normed,
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in head.taps] or None,
    }
    if head.kind == "p-eagle":
        flags["mask_token_id"] = head.mask_token
    if layout == "eagle3":
        named = {n.replace("layers.0.", "midlayer."): t for n, t in head.tensors.items()}
        whole = {**sizes, **flags, "architectures": ["LlamaForCausalLMEagle3"]}
    else:
        named = dict(head.tensors)
        algorithm = {"eagle3": "eagle3", "p-eagle": "peagle"}[head.kind]
        greedy = {"proposal_type": "greedy", "speculative_tokens": 5}
        whole = {
            **flags,
            "architectures": ["Eagle3Speculator" if algorithm == "eagle3" else "PEagleSpeculator"],
            "speculators_model_type": algorithm,
            "transformer_layer_config": sizes,
            "speculators_config": {
                "algorithm": algorithm,
                "proposal_methods": [greedy],
                "default_proposal_method": "greedy",
                "verifier": {"name_or_path": head.verifier or None},
            },
        }
    _write(folder / "model.safetensors", named, whole)


def _in_8_bits(tensors: Tensors) -> dict[str, NDArray[Any]]:
    made: dict[str, NDArray[Any]] = {}
    for name, values in tensors.items():
        made[name] = values
        if values.ndim == 2 and values.dtype.kind == "f":
            scale = np.abs(values).max(axis=1, keepdims=True).astype(np.float32) / 127
            scale[scale == 0] = 1
            made[name] = np.rint(values / scale).astype(np.int8)
            made[f"{name}{_SCALE}"] = scale
    return made


def _in_full(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """Return the tensors without scales: 8-bit matrices are multiplied by their scales."""
    made = {name: t for name, t in tensors.items() if not name.endswith(_SCALE)}
    for name, values in made.items():
        scale = tensors.get(f"{name}{_SCALE}")
        if (values.dtype == np.int8) != (scale is not None):
            raise InvalidModel(name, values.dtype, f"numbers of 8 bits need {name}{_SCALE}")
        if scale is not None:
            if values.ndim != 2 or scale.shape != (len(values), 1):
                fix = f"give one number for each row of a matrix of {values.shape}"
                raise InvalidModel(f"{name}{_SCALE}", scale.shape, fix)
            made[name] = values * scale.astype(np.float32)
    return made


def _their_name(kind: str, name: str) -> str:
    """Return the published name of a tensor; MTP's names are those of Qwen3-Next."""
    if kind == "longspec":
        start = next((each for each in LONGSPEC.items() if name.startswith(each[1])), ("", ""))
        return start[0] + name[len(start[1]) :]
    if kind != "mtp":
        embeds = name.startswith("embed_tokens.")
        return f"clover_{name}" if kind == "clover-2" and embeds else name
    for ours, theirs in (("enorm.", "pre_fc_norm_embedding."), ("hnorm.", "pre_fc_norm_hidden."),
                         ("eh_proj.", "fc.")):  # fmt: skip
        name = name.replace(ours, theirs)
    own = name.startswith("lm_head.") or name == "d2t"  # Scales of the LM head stay beside it.
    return name if own else f"mtp.{name}"


def _write(
    file: Path, tensors: Mapping[str, NDArray[Any]], config: Mapping[str, Any],
    name: str = "config.json",
) -> None:  # fmt: skip
    arrays = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    file.write_bytes(to_bytes(arrays, {"format": "pt"}))
    text = json.dumps({k: v for k, v in config.items() if v is not None}, indent=2)
    (file.parent / name).write_text(text + "\n")


def _rope(head: HeadFile) -> dict[str, Any]:
    rope = head.rope
    said: dict[str, Any] = {"rope_theta": rope.theta}
    if rope.dim != head.head_dim:
        said["partial_rotary_factor"] = rope.dim / head.head_dim
    if rope.scaling == "none":
        return said | {"rope_scaling": None, "rope_parameters": None}
    scaling = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling != "linear":
        scaling["original_max_position_embeddings"] = rope.original_context
    if rope.scaling == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor,
                    "high_freq_factor": rope.high_freq_factor}  # fmt: skip
    if rope.scaling == "yarn":
        scaling |= {"attention_factor": rope.attention_factor, "beta_fast": rope.beta_fast,
                    "beta_slow": rope.beta_slow, "truncate": rope.truncate}  # fmt: skip
    if rope.scaling == "longrope":
        scaling |= {"attention_factor": rope.attention_factor,
                    "short_factor": [*rope.factors], "long_factor": [*rope.factors]}  # fmt: skip
    return said | {"rope_scaling": scaling, "rope_parameters": None}


def _safetensors(paths: list[Path]) -> dict[str, NDArray[Any]]:
    stored = [each for path in paths for each in mapped(path)]
    start = module_start([name for name, *_ in stored])
    found: dict[str, NDArray[Any]] = {}
    size = 0
    for name, dtype, shape, raw in stored:
        if name.startswith("model.") and start and not name.startswith(start):
            continue  # The target's own.
        size += raw.nbytes
        if size > MOST_BYTES:
            raise InvalidModel("head", str(paths[0].parent), "it is too large for a head")
        if dtype not in _DTYPES:
            raise InvalidModel(name, dtype, f"use one of {', '.join(_DTYPES)}")
        values = raw.view(_DTYPES[dtype]).reshape(shape)
        if dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        found[name] = values.astype(np.float32) if values.dtype.kind == "f" else values
    return found


def _pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a PyTorch file; nothing else in the file is read."""
    try:
        import torch
    except ImportError:
        raise InvalidModel("head", str(path), "reading .bin and .pt files needs torch") from None
    try:
        _check_parts(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
            raise ValueError("it must map names to tensors")
        _check_sizes(loaded, path.stat().st_size)
        return {
            name: (t.float() if t.is_floating_point() else t).numpy() for name, t in loaded.items()
        }
    except Exception as error:  # Pickles fail in many ways.
        raise InvalidModel("head", str(path), f"give a sound file ({reason(error)})") from None


def _check_parts(path: Path) -> None:
    """Raise ValueError if the file unpacks to more than its size; PyTorch compresses nothing."""
    if is_zipfile(path):
        with ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > path.stat().st_size:
                raise ValueError("its parts are compressed")


def _check_sizes(tensors: dict[object, Any], size: int) -> None:
    """Raise ValueError if a file of ``size`` bytes cannot hold these tensors.

    One tensor can repeat a few numbers without end, and several can share numbers, like tied
    weights.
    """
    if any(not isinstance(name, str) or t.is_complex() for name, t in tensors.items()):
        raise ValueError("give names of texts and tensors of real numbers")
    stored = sum(t.numel() * t.element_size() for t in tensors.values())
    if stored > 2 * size or sum(t.numel() for t in tensors.values()) * 4 > MOST_BYTES:
        raise ValueError("its tensors are larger than the file")
