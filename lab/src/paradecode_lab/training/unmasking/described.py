"""Describe a loaded model in the files of a folder, with transformers' names."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.folder_config import ARCHITECTURES, folder_config
from paradecode.models.metadata import Metadata

_UNSAID = ("name", "architecture", "add_bos", "decoder")
"""Fields of a configuration that config.json does not contain, or that the model family implies."""
_ROPE = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor", "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_context": "original_max_position_embeddings",
    },
    "yarn": {
        "factor": "factor", "original_context": "original_max_position_embeddings",
        "attention_factor": "attention_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
    },
}  # fmt: skip
"""Kind of rotary scaling -> its fields, with their names in config.json."""


def described(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the files, beside the weights, of a folder that describes the model: name -> text.

    The files are config.json, tokenizer.json, tokenizer_config.json and, for chat models,
    chat_template.jinja.

    Raises:
        InvalidModel: config.json cannot describe the model (experts, or a table of rotary factors);
            the message names the field.
    """
    tokenizer, settings = checkpoint.tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, index in (("bos_token", tokenizer.bos), ("eos_token", tokenizer.eos)):
        if index is not None:
            settings[name] = tokenizer.token(index)
    files = {
        "config.json": _json(_config(checkpoint.config)),
        "tokenizer.json": tokenizer.json(),
        "tokenizer_config.json": _json(settings),
    }
    if checkpoint.chat_template is not None:
        files["chat_template.jinja"] = checkpoint.chat_template.source
    return files


def check_described(config: ModelConfig) -> None:
    """Raise InvalidModel if config.json cannot describe the model."""
    _config(config)


def _config(config: ModelConfig) -> dict[str, Any]:
    said = _said(config)
    # Reading the description must give the same configuration: then nothing was left out.
    read = _fields(folder_config(Path(), Metadata(said)))
    for name, value in _fields(config).items():
        if read[name] != value:
            fix = f"config.json cannot say this of a {said['architectures'][0]}; name a folder"
            raise InvalidModel(name, value, fix)
    return said


def _said(config: ModelConfig) -> dict[str, Any]:
    family = "mistral" if config.sliding_window else "llama"
    if config.qk_norm:
        family = "qwen3"
    elif config.qkv_bias and not config.output_bias:
        family = "qwen2"
    said: dict[str, Any] = {
        "architectures": [next(name for name, own in ARCHITECTURES.items() if own == family)],
        "model_type": family, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim, "hidden_act": "silu", "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length, "rope_theta": config.rope.theta,
        "rope_scaling": _scaling(config.rope), "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias, "tie_word_embeddings": config.tied_head,
        "sliding_window": config.sliding_window or None,
        "bos_token_id": config.bos_token, "eos_token_id": list(config.eos_tokens),
    }  # fmt: skip
    if config.sliding_window:
        said |= {"use_sliding_window": True, "max_window_layers": 0}
    if config.rope.dim != config.head_dim:
        said["partial_rotary_factor"] = config.rope.dim / config.head_dim
    if config.attention != "causal" or config.mask_token is not None:
        said |= {
            "attention": config.attention, "block_length": config.block_length,
            "shift": config.shift, "mask_token_id": config.mask_token,
        }  # fmt: skip
    return said


def _scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.scaling == "none":
        return None
    names = _ROPE[rope.scaling]
    return {"rope_type": rope.scaling, **{said: getattr(rope, own) for own, said in names.items()}}


def _fields(config: ModelConfig) -> dict[str, Any]:
    """Return the fields that config.json must describe; the rope's are ``rope.<field>``."""
    fields = config.facts()
    rope = {f"rope.{name}": value for name, value in asdict(fields.pop("rope")).items()}
    return {name: value for name, value in (fields | rope).items() if name not in _UNSAID}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
