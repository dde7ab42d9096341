"""Tiny random GGUF files of models whose layers keep a state, as llama.cpp reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from family_models import VOCABULARY, random_tensors, together
from gguf import GGUFWriter
from gguf_writing import add_tokenizer

from paradecode.models.config import ModelConfig
from paradecode.models.families import BY_GGUF, Family
from paradecode.models.families.family import GGUF_NAMES, GGUF_OUTSIDE
from paradecode.models.families.gguf import facts_of
from paradecode.models.gguf_header import Header, TensorInfo
from paradecode.models.metadata import Metadata
from paradecode.models.parts import NAMES
from paradecode.models.recurrence import Recurrence
from paradecode.models.rope import Rope
from paradecode.models.weights import Kind

_SIZES = {
    "embedding_length": 64, "block_count": 4, "context_length": 512, "feed_forward_length": 80,
    "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4,
    "rope.dimension_count": 16,
}  # fmt: skip
_MIXED = {"attention.head_count_kv": [0, 2] * 2}
_MAMBA = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
}  # fmt: skip
_DELTA = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4,
    "ssm.group_count": 2, "full_attention_interval": 2, "attention.head_count_kv": 2,
    "attention.key_length": 24, "attention.value_length": 24, "rope.dimension_count": 8,
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "lfm2": {**_MIXED, "shortconv.l_cache": 3},
    "mamba2": {**_MAMBA, "attention.head_count": 0, "feed_forward_length": 0, "block_count": 2},
    "granitehybrid": {
        **_MIXED, **_MAMBA, "embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0,
        "attention.scale": 0.2,
    },
    "falcon-h1": {**_MAMBA, "attention.head_count_kv": 2},
    "nemotron_h": {
        **_MAMBA, "attention.head_count_kv": [0, 0, 2, 0], "attention.key_length": 24,
        "attention.value_length": 24, "feed_forward_length": [0, 80, 0, 80],
        "attention.layer_norm_epsilon": 1e-5,
    },
    "qwen3next": {
        **_DELTA, "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 48,
        "expert_shared_feed_forward_length": 40,
    },
    "qwen35": {
        **_DELTA, "rope.dimension_sections": [2, 1, 1, 0], "block_count": 5,
        "nextn_predict_layers": 1,
    },
}  # fmt: skip
FILES["granitehybrid/experts"] = {
    **FILES["granitehybrid"],
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_shared_feed_forward_length": 48,
}
FILES["nemotron_h_moe"] = {
    **FILES["nemotron_h"],
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_group_count": 2,
    "expert_group_used_count": 1,
    "expert_feed_forward_length": 48,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_shared_feed_forward_length": 40,
}
FILES["qwen35moe"] = {**FILES["qwen3next"], "rope.dimension_sections": [2, 1, 1, 0]}
"""Architecture, perhaps with a form -> the facts of its tiny file, without the architecture."""


def write_states(path: Path, form: str) -> ModelConfig:
    """Write a random model of an architecture, or a form of it, and return its configuration."""
    architecture = form.partition("/")[0]
    family, facts = BY_GGUF[architecture], _SIZES | FILES[form]
    writer = GGUFWriter(path, architecture)
    for key, value in facts.items():
        add = {float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32,
               list: writer.add_array}[type(value)]  # fmt: skip
        add(f"{architecture}.{key}", value)
    add_tokenizer(writer, VOCABULARY)
    known = {f"{architecture}.{key}": np.array(value) if isinstance(value, list) else value
             for key, value in facts.items()}  # fmt: skip
    embed = TensorInfo((VOCABULARY, 64), Kind.F32, memoryview(b""))
    header = Header(Metadata(known), {"token_embd.weight": embed})
    named = {"head"}
    if _MAMBA.items() <= facts.items():
        named.add("layers.0.state_q_taps.bias")
    rope = Rope(theta=1e4, dim=facts["rope.dimension_count"])
    values = facts_of(family, architecture, header, named, rope)
    config = ModelConfig(name="x", architecture=family.name, **family.fields(values))
    for stored, tensor in _stored(family, config, _tensors(config)):
        writer.add_tensor(stored, np.ascontiguousarray(tensor))
        # A layer that guesses a second token follows.
        if architecture == "qwen35" and stored.startswith("blk.3."):
            writer.add_tensor(stored.replace("3", "4", 1), np.ascontiguousarray(tensor))
    if architecture == "qwen35":
        # The state passes, so that some of what the layer guesses is right.
        passed = np.concatenate([np.zeros((64, 64)), 20 * np.eye(64)], axis=1)
        writer.add_tensor("blk.4.nextn.eh_proj.weight", passed.astype(np.float32))
        for norm in ("enorm", "hnorm"):
            writer.add_tensor(f"blk.4.nextn.{norm}.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def _tensors(config: ModelConfig) -> dict[str, np.ndarray]:
    """Return random weights by our names, whose states neither vanish nor grow."""
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith("decay"):
            tensors[name] = -np.exp(tensor)
        elif name.endswith("_taps"):
            # Long keys: llama.cpp adds nothing to their squares before it divides by the length.
            tensors[name] = tensor * 10
        elif name.endswith("gain") and tensor.ndim == 1:
            tensors[name] = tensor + 1
    return tensors


def _stored(
    family: Family, config: ModelConfig, tensors: dict[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the file with their names."""
    left = together(tensors)
    outside = {own: stored for stored, own in GGUF_OUTSIDE.items()}
    for stored in GGUF_OUTSIDE:
        if stored in family.gguf_names:
            outside[family.gguf_names[stored]] = stored
    for own in [name for name in left if not name.startswith("layers.")]:
        yield f"{outside[own]}.weight", left.pop(own)
    names = {**family.gguf_names, **{k: v for k, v in GGUF_NAMES.items() if k != "attn_qkv"}}
    names |= family.gguf_names
    if "attn_gate" in names:
        # The form of older files, and of the other one of both families.
        del names["ssm_in"], names["ssm_ba" if family.name == "qwen35" else "ssm_beta"]
    for index, layer in enumerate(config.stack):
        mixer, place = NAMES[type(layer.parts[0])], f"layers.{index}."
        groups = [part.key_heads for part in layer.states if isinstance(part, Recurrence)]
        for stored, own in names.items():
            parts = own.replace("mixer", mixer).replace("/", "+").split("+")
            for end in ("", ".bias"):
                if any(f"{place}{part}{end}" not in left for part in parts):
                    continue
                every = [left.pop(f"{place}{part}{end}") for part in parts]
                count = groups[0] if groups else config.heads
                if "/" in own:
                    every = [each.reshape(count, -1, each.shape[1]) for each in every]
                    tensor = np.concatenate(every, 1).reshape(-1, every[0].shape[2])
                else:
                    tensor = np.concatenate(every)
                if "taps" in own and not end:
                    tensor = tensor.reshape(-1, 4 if groups else 3)
                if stored == "ssm_norm" and _MAMBA.items() <= FILES[family.gguf[0]].items():
                    tensor = tensor.reshape(groups[0], -1)
                if own in ("state_decay", "state_skip") and "attn_gate" not in names:
                    tensor = tensor[:, None]
                if own == "shared.gain":
                    tensor = tensor[0]
                kinds = {"ssm_a": "", "ssm_d": "", "ssm_dt": ".bias", "exp_probs_b": ".bias"}
                kind = kinds.get(stored, end or ".weight")
                if family.name == "falcon-h1" and stored == "ffn_norm":
                    kind = ""
                yield f"blk.{index}.{stored}{kind}", tensor
    assert not left, {*left}
