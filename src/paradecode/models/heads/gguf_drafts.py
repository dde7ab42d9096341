"""Draft heads for llama.cpp in GGUF files: EAGLE-3, DFlash, DSpark and DFlash2.

DSpark and DFlash2 have the architecture ``dflash`` and further tensors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.families.family import half_split
from paradecode.models.gguf_file import file_bytes, rope_in, tensor_in
from paradecode.models.gguf_header import Header, read_header
from paradecode.models.heads.layouts import HeadFile, recognise
from paradecode.models.metadata import Metadata

MOST_BYTES = 1 << 33
_NAMES = {
    "token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight", "fc.weight": "fc.weight", "d2t": "d2t",
    "enc.output_norm.weight": "hidden_norm.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}  # fmt: skip
_MARKOV, _SELECTOR = "markov_w1.weight", "selector_hidden.weight"
_PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj": "attention_conv.kernel_projection", "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}  # fmt: skip
_MODULE = {
    "nextn.eh_proj": "mtp.fc", "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden", "nextn.shared_head_norm": "mtp.norm",
    "nextn.shared_head_head": "lm_head", "nextn.embed_tokens": "embed_tokens",
    **{theirs: f"mtp.layers.0.{ours}" for theirs, ours in _PARTS.items()},
    "post_attention_norm": "mtp.layers.0.post_attention_layernorm",
}  # fmt: skip
"""Tensors of the layer behind a Qwen3.5 model's own -> their names in a folder."""
_ROPE_FACTORS = "rope_freqs.weight"


def read_gguf_draft(path: Path) -> HeadFile:
    """Read a head in the form of llama.cpp's converter; raises InvalidModel."""
    header = read_header(file_bytes(path))
    architecture = header.fields.text("general.architecture")
    if architecture == "qwen35":
        return _read_module(path, header)
    if architecture not in ("eagle3", "dflash"):
        fix = (
            "of GGUF files, drafts of architecture eagle3 or dflash are known, and Qwen3.5's module"
        )
        raise InvalidModel("general.architecture", architecture, fix)
    if sum(int(np.prod(info.shape)) for info in header.tensors.values()) * 4 > MOST_BYTES:
        raise InvalidModel("head", str(path), "it is too large for a head")
    tensors: dict[str, NDArray[Any]] = {}
    for name, info in header.tensors.items():
        if name == _ROPE_FACTORS:
            continue
        ours = _ours(name)
        if ours is None:
            raise InvalidModel(name, "tensor", f"no {architecture} head has it")
        if name == "d2t":  # The tokens themselves, not how far they are from the head's.
            if len(info.shape) != 1:
                raise InvalidModel(name, info.shape, "give a token for each of the head's")
            raw = np.frombuffer(info.data, np.uint8)
            tensors[name] = raw.view("<i8") - np.arange(info.shape[-1])
        else:
            tensors[ours] = tensor_in(info).float32()
    file = recognise(_config(architecture, header), tensors)
    tensors = dict(file.tensors)
    dim = header.fields.whole(f"{architecture}.rope.dimension_count", file.head_dim, 2, 1024)
    if dim > file.head_dim or dim % 2:
        raise InvalidModel(f"{architecture}.rope.dimension_count", dim, "turn a part of a head")
    file = replace(file, rope=rope_in(architecture, header, dim))
    if architecture == "eagle3":  # Its pairs lie side by side in the file.
        for part, heads in (("q", file.heads), ("k", file.kv_heads)):
            name = f"layers.0.self_attn.{part}_proj.weight"
            if name not in tensors or len(tensors[name]) != heads * file.head_dim:
                shape = tensors[name].shape if name in tensors else None
                raise InvalidModel(name, shape, f"expected {heads} heads")
            tensors[name] = tensors[name][half_split(heads, file.head_dim, dim)]
    return replace(file, tensors=tensors)


def _read_module(path: Path, header: Header) -> HeadFile:
    """Read the module for multi-token prediction of a whole Qwen3.5 model."""
    fields = header.fields
    every = fields.whole("qwen35.block_count", None, 1, 1 << 12)
    modules = fields.whole("qwen35.nextn_predict_layers", 0, 0, every - 1)
    if not modules:
        fix = "give a file with a module for multi-token prediction"
        raise InvalidModel("qwen35.nextn_predict_layers", modules, fix)
    tensors: dict[str, NDArray[Any]] = {}
    start = f"blk.{every - modules}."
    own = {name: info for name, info in header.tensors.items() if name.startswith(start)}
    if (
        f"{start}nextn.shared_head_norm.weight" not in own
        and "output_norm.weight" in header.tensors
    ):
        own[f"{start}nextn.shared_head_norm.weight"] = header.tensors["output_norm.weight"]
    if sum(int(np.prod(info.shape)) for info in own.values()) * 4 > MOST_BYTES:
        raise InvalidModel("head", str(path), "it is too large for a head")
    for name, info in own.items():
        ours = _MODULE.get(name.removeprefix(start).removesuffix(".weight"))
        if ours is None:
            raise InvalidModel(name, "tensor", "no module of Qwen3.5 has it")
        # Folders store gains minus 1.
        less = 1.0 if len(info.shape) == 1 else 0.0
        tensors[f"{ours}.weight"] = tensor_in(info).float32() - np.float32(less)
    file = recognise(Metadata({**_sizes("qwen35", header), "model_type": "qwen3_5"}), tensors)
    dim = fields.whole("qwen35.rope.dimension_count", file.head_dim, 2, 1024)
    if dim > file.head_dim or dim % 2:
        raise InvalidModel("qwen35.rope.dimension_count", dim, "turn a part of a head")
    return replace(file, rope=rope_in("qwen35", header, dim))


def _sizes(architecture: str, header: Header) -> dict[str, Any]:
    """Return the sizes of a head's layers under their names in config.json."""
    fields = header.fields

    def need(key: str, default: int | None = None) -> int:
        return fields.whole(f"{architecture}.{key}", default, 0, 1 << 24)

    hidden, heads = need("embedding_length"), need("attention.head_count")
    return {
        "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": need("attention.head_count_kv", heads),
        "head_dim": need("attention.key_length", hidden // max(heads, 1)),
        "rms_norm_eps": fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5),
    }  # fmt: skip


def _config(architecture: str, header: Header) -> Metadata:
    """Return the values that the folder's config.json would have."""
    fields = header.fields
    name = f"{architecture}.target_layers"
    layers = fields.get(name, fields.get(f"{architecture}.extract_layers"))
    if not isinstance(layers, np.ndarray) or layers.dtype.kind not in "iu":
        raise InvalidModel(name, layers, "it must list the tapped layers")
    said: dict[str, Any] = {
        **_sizes(architecture, header),
        "norm_before_residual": fields.flag(f"{architecture}.norm_before_residual"),
        "norm_before_fc": fields.flag(f"{architecture}.norm_before_fc"),
        "aux_hidden_state_layer_ids": layers.tolist(),
    }  # fmt: skip
    if architecture == "dflash":
        return Metadata(said | _masked(header))
    return Metadata(said | {"speculators_model_type": architecture})


def _masked(header: Header) -> dict[str, Any]:
    """Return what z-lab's config.json would say of a head that drafts on mask tokens.

    llama.cpp gives each row a window of its own, and one setting says of all layers whether a row
    sees later ones.
    """
    fields, at = header.fields, "dflash.attention."
    selects, window = _SELECTOR in header.tensors, f"{at}sliding_window"
    _refuse_unknown(fields, selects)
    block = fields.whole("dflash.block_size", None, 2, 1 << 24)
    mask = fields.whole("tokenizer.ggml.mask_token_id", None, 0, 1 << 24)
    said: dict[str, Any] = {
        "block_size": block,
        "dflash_config": {"mask_token_id": mask},
        "is_causal": fields.flag(f"{at}causal"),
    }
    layers = fields.whole("dflash.block_count", None, 1, 1 << 10)
    stored = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    if len(stored) != layers:
        raise InvalidModel("dflash.block_count", layers, f"the file has {len(stored)} layers")
    said["num_hidden_layers"] = layers
    if fields.whole(window, 0, 0):
        said["sliding_window"] = fields.whole(window, None, block, 1 << 24)
        pattern = fields.get(f"{at}sliding_window_pattern")
        listed = pattern.tolist() if isinstance(pattern, np.ndarray) else []
        if len(listed) != layers or not {*listed} <= {0, 1}:
            fix = f"say of each of the {layers} layers whether it has the window"
            raise InvalidModel(f"{at}sliding_window_pattern", listed or pattern, fix)
        said["layer_types"] = [
            "sliding_attention" if slides else "full_attention" for slides in listed
        ]
    if _MARKOV in header.tensors:
        said["sample_from_anchor"] = fields.flag("dflash.sample_from_anchor", True)
    if selects:
        for key in ("conv_kernel_size", "conv_group_size", "selector_top_k"):
            said[key] = fields.whole(f"dflash.{key}", None, 1, 1 << 24)
    return said


def _refuse_unknown(fields: Metadata, selects: bool) -> None:
    """Raise InvalidModel for a setting that changes a draft and is not supported.

    Args:
        selects: whether the head is a DFlash2, whose selector reads scaled logits.
    """
    scales = ("logit_scale", "final_logit_softcapping") if selects else ()
    for key in ("hyper_connection.count", *scales):
        value = fields.number(f"dflash.{key}", 0.0)
        if value and (key, value) != ("logit_scale", 1):
            raise InvalidModel(f"dflash.{key}", value, "drafts without it are known")
    name = "dflash.rope.dimension_sections"
    sections = fields.get(name)
    if sections is not None and (not isinstance(sections, np.ndarray) or sections[1:].any()):
        raise InvalidModel(name, sections, "drafts that turn by one position are known")


def _ours(name: str) -> str | None:
    found = re.fullmatch(r"blk\.(\d{1,3})\.(\w+)(\.weight|\.bias|)", name)
    if found is None or found[2] not in _PARTS:
        return _NAMES.get(name)
    return f"layers.{int(found[1])}.{_PARTS[found[2]]}{found[3]}"
