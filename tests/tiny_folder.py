"""Writes folders with tiny random models and a tokenizer of single bytes, as on the hub."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paradecode.models import safetensors_dir
from paradecode.models.text_stream import byte_characters
from paradecode.models.tiny import tiny_checkpoint

ARCHITECTURES = {
    "llada": "LLaDAModelLM", "dream": "DreamModel", "sdar": "SDARForCausalLM",
    "llama": "LlamaForCausalLM",
}  # fmt: skip
CONTEXT = 4096
LLADA_NAMES = {
    "embed": "model.transformer.wte", "norm": "model.transformer.ln_f",
    "head": "model.transformer.ff_out", "attn_norm": "attn_norm", "mlp_norm": "ff_norm",
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out",
    "gate": "ff_proj", "up": "up_proj", "down": "ff_out",
}  # fmt: skip


def write_folder(folder: Path, kind: str, **changes: object) -> Path:
    """Write a tiny model in the form in which its family publishes models, and return the folder.

    Args:
        folder: the folder, which is created if it is missing.
        kind: one of ``ARCHITECTURES``.
        changes: entries that replace those of ``config.json``.
    """
    config, weights = tiny_checkpoint(kind)
    folder.mkdir(exist_ok=True)
    stored = {stored_name(kind, name): tensor.float32() for name, tensor in weights.items()}
    save_file({n: np.ascontiguousarray(v) for n, v in stored.items()}, folder / "model.safetensors")
    sizes: dict[str, object]
    if kind == "llada":
        sizes = {
            "d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 96,
            "max_sequence_length": CONTEXT, "weight_tying": False, "include_bias": False,
        }  # fmt: skip
    else:
        sizes = {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": config.tied_head, "head_dim": 16,
        }  # fmt: skip
    about = {
        "architectures": [ARCHITECTURES[kind]], "vocab_size": config.vocab_size, "eos_token_id": 0,
        "rms_norm_eps": config.norm_eps, "mask_token_id": config.mask_token, **sizes,
        **({"block_size": config.block_length} if kind == "sdar" else {}), **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    letters = ["<eos>", *[*byte_characters()][: config.vocab_size - 2], "<mask>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>"), AddedToken("<mask>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def stored_name(kind: str, name: str) -> str:
    """Return the name of a tensor in the published checkpoints of a family."""
    if kind != "llada":
        return safetensors_dir.stored_name(name)
    name, weight = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
    *inside, part = name.split(".")
    layer = f"model.transformer.blocks.{inside[1]}." if inside else ""
    return f"{layer}{LLADA_NAMES[part]}.{weight}"
