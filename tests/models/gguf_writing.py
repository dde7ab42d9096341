"""Write small GGUF files as llama.cpp's converter does, to read them back."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter, quants

from paradecode.models.config import ModelConfig
from paradecode.models.text_stream import byte_characters
from paradecode.models.weights import Kind

FILE_NAMES = {
    "embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
    "attn_norm": "attn_norm.weight", "q": "attn_q.weight", "k": "attn_k.weight",
    "v": "attn_v.weight", "o": "attn_output.weight", "q.bias": "attn_q.bias",
    "k.bias": "attn_k.bias", "v.bias": "attn_v.bias", "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight", "mlp_norm": "ffn_norm.weight", "gate": "ffn_gate.weight",
    "up": "ffn_up.weight", "down": "ffn_down.weight", "router": "ffn_gate_inp.weight",
}  # fmt: skip


def raw_gguf(
    fields: list[tuple[str, int]],
    tensors: dict[str, tuple[tuple[int, ...], int]],
    data: bytes,
) -> bytes:
    """Return an unchecked file as bytes: whole-number fields, F32 tensors of (shape, offset)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for name, number in fields:
        out += text(name) + struct.pack("<II", 4, number)
    for name, (shape, offset) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        out += struct.pack("<IQ", 0, offset)
    return out + bytes(-len(out) % 32) + data


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of q and k as llama.cpp does (LlamaModel.permute of its converter)."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def random_blocks(rows: int, columns: int, kind: Kind, seed: int) -> np.ndarray:
    """Return valid raw rows of any kind: quantised where the package can, else random bytes."""
    random = np.random.default_rng(seed)
    try:
        return quants.quantize(random.standard_normal((rows, columns), np.float32), kind)
    except NotImplementedError:
        block, size = GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (rows * columns // block, size), np.uint8)
        # Half-precision scales must be finite: their exponent lies in the high byte.
        raw[:, [1, 3, -3, -1]] &= 0xBF
        return raw.reshape(rows, -1)


def add_tokenizer(writer: GGUFWriter, size: int, pre: str = "smollm") -> list[str]:
    """Write a byte-level vocabulary of ``size`` tokens; the last three are control tokens."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    # The letters of the merges and "Ġ", the space, come first; small vocabularies lack the rest.
    first = "Ġtheing"
    letters = [*first, *[c for c in byte_characters() if c not in first]][: size - 7]
    merged = ["th", "the", "in", "ing"]
    tokens = letters + merged + control
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 3) + [3] * 3)
    writer.add_token_merges(["t h", "th e", "i n", "in g"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    return tokens


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: dict[str, np.ndarray],
    kinds: dict[str, Kind] | None = None,
    extra: dict[str, float] | None = None,
    tokenizer: bool = True,
) -> None:
    """Write canonical weights: float arrays, or raw blocks where ``kinds`` names their kind."""
    architecture = config.architecture
    writer = GGUFWriter(path, architecture)
    writer.add_name("a small model")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    if config.mixture is not None:
        writer.add_expert_count(config.mixture.experts)
        writer.add_expert_used_count(config.mixture.chosen)
        writer.add_expert_feed_forward_length(config.mixture.expert_size)
    if config.attention == "full":
        writer.add_causal_attention(False)
        writer.add_diffusion_shift_logits(config.shift)
        writer.add_mask_token_id(config.mask_token)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_dimension_count(config.rope.dim)
    for key, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{key}", value)
    if tokenizer:
        add_tokenizer(writer, config.vocab_size)
    experts: dict[str, list[np.ndarray]] = {}
    for name, rows in weights.items():
        if ".experts." in name:
            layer, part = name.split(".")[1], name.rpartition(".")[2]
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", []).append(rows)
            continue
        if name == "rope_freqs":
            writer.add_tensor("rope_freqs.weight", rows)
            continue
        layer, _, part = name.removeprefix("layers.").partition(".")
        if name.startswith("layers."):
            stored = f"blk.{layer}.{FILE_NAMES[part]}"
        else:
            part, stored = name, FILE_NAMES[name]
        if architecture in ("llama", "llada") and part.split(".")[0] in ("q", "k"):
            rows = permute(rows, config.heads if part[0] == "q" else config.kv_heads)
        kind = (kinds or {}).get(name)
        if kind is None or kind in (Kind.F32, Kind.F16):
            writer.add_tensor(stored, rows)
        else:
            writer.add_tensor(stored, rows, raw_dtype=kind)
    for stored, matrices in experts.items():
        writer.add_tensor(stored, np.stack(matrices))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
