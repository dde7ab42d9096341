"""Folders with tiny random models and a tokenizer of single bytes, as a hub publishes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paradecode.models.text_stream import byte_characters
from paradecode.models.tiny import tiny_checkpoint

ARCHITECTURES = {"llama": "LlamaForCausalLM", "sdar": "SDARForCausalLM"}
CONTEXT = 4096
PARTS = {
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
} | {part: f"self_attn.{part}_proj" for part in "qkvo"}  # fmt: skip
TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def write_folder(folder: Path, kind: str) -> str:
    """A model of a kind (``llama``; ``sdar``, a diffusion model); returns the folder's name."""
    config, weights = tiny_checkpoint(kind)
    folder.mkdir(exist_ok=True)
    stored = {_stored_name(name): tensor.float32() for name, tensor in weights.items()}
    save_file({n: np.ascontiguousarray(v) for n, v in stored.items()}, folder / "model.safetensors")
    about = {
        "architectures": [ARCHITECTURES[kind]], "vocab_size": config.vocab_size, "eos_token_id": 0,
        "rms_norm_eps": config.norm_eps, "mask_token_id": config.mask_token, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "max_position_embeddings": CONTEXT, "head_dim": 16,
        "tie_word_embeddings": config.tied_head,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    letters = ["<eos>", *[*byte_characters()][: config.vocab_size - 2], "<mask>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>"), AddedToken("<mask>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def _stored_name(name: str) -> str:
    if name in TOP:
        return f"{TOP[name]}.weight"
    _, layer, part = name.split(".", 2)
    part, _, bias = part.partition(".")
    return f"model.layers.{layer}.{PARTS[part]}.{bias or 'weight'}"
