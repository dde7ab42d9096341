"""Writes folders of tiny random models with experts, with the layout of published models."""

from pathlib import Path
from typing import Any

import numpy as np
from published import write_config
from safetensors.numpy import save_file

from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.mixture import Mixture
from paradecode.models.weights import Tensor, Weights

EXPERT_FAMILIES = ("llada-moe", "llada2")
MASK = 95
SHAPES: dict[str, dict[str, Any]] = {
    "llada-moe": {
        "attention": "full", "dense": frozenset({0}),
        "rope": Rope(theta=10000.0, dim=16), "kv_heads": 4,
        "mixture": Mixture(
            experts=8, chosen=3, expert_size=32, shared_size=48, 
            bias=True, biased_weights=True,
        ),
    },
    "llada2": {
        "attention": "block", "dense": frozenset({0}), "block_length": 8,
        "rope": Rope(theta=10000.0, dim=8),
        "kv_heads": 2,
        "mixture": Mixture(
            experts=16, chosen=3, expert_size=32, shared_size=32, 
            score="sigmoid", groups=4, chosen_groups=2, bias=True, normalised=True, scale=2.5,
        ),
    },
}  # fmt: skip
"""The sizes of each family's model.

They use every part that the family's code has; the published models leave some of them out.
"""
NAMES = {
    "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
LLADA2_NAMES = {
    "embed": "model.word_embeddings", "q_norm": "attention.query_layernorm",
    "k_norm": "attention.key_layernorm", "o": "attention.dense",
}  # fmt: skip


def expert_model(family: str, layers: int = 3) -> tuple[ModelConfig, Weights]:
    """Return a float32 model like that of a fixture; its mask token always has logit 0."""
    config = uniform(
        name=family, architecture="llama", vocab_size=96, hidden_size=64, layers=layers, heads=4,
        head_dim=16, intermediate_size=96, context_length=512, qk_norm=True, mask_token=MASK,
        eos_tokens=(0,), **SHAPES[family],
    )  # fmt: skip
    random = np.random.Generator(np.random.PCG64(17))
    weights = {}
    for name, shape in config.tensors().items():
        noise = random.standard_normal(shape, np.float32)
        if name.endswith("norm"):
            values = 1 + np.float32(0.1) * noise
        elif name.endswith("bias"):
            values = np.float32(0.1) * noise
        else:
            gain = 4.0 if name in ("embed", "head") else 2.5
            values = noise * np.float32(gain / np.sqrt(shape[-1]))
        weights[name] = Tensor(values, shape)
    weights["head"].data[MASK] = 0.0
    return config, weights


def write_expert_folder(family: str, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` of :func:`expert_model`, as on the hub."""
    config, weights = expert_model(family)
    name, more = {
        "llada-moe": ("LLaDA-MoE-7B-A1B-Instruct",
                      {"moe_layer_freq": [0, 1, 1], "moe_router_enable_expert_bias": True}),
        "llada2": ("LLaDA2.0-mini", {"block_length": config.block_length}),
    }[family]  # fmt: skip
    write_config(folder, name, config, **more)
    named = {}
    for name, tensor in weights.items():
        if family == "llada2" and name.rpartition(".")[2] in ("k", "v"):
            continue  # They follow the queries in one tensor.
        values = tensor.float32()
        if family == "llada2" and name.endswith(".q"):
            parts = [weights[name[:-1] + part].float32() for part in "qkv"]
            values = np.concatenate(parts)
        named[_stored(family, name)] = np.ascontiguousarray(values)
    save_file(named, folder / "model.safetensors")


def _stored(family: str, name: str) -> str:
    names = NAMES | (LLADA2_NAMES if family == "llada2" else {})
    if not name.startswith("layers."):
        return names[name] + ".weight"
    _, layer, own = name.split(".", 2)
    return f"model.layers.{layer}.{_in_layer(family, names, own)}"


def _in_layer(family: str, names: dict[str, str], own: str) -> str:
    second = family == "llada2"
    if own == "q" and second:
        return "attention.query_key_value.weight"
    if own == "router":
        return "mlp.gate.weight"
    if own == "router.bias":
        return "mlp.gate.expert_bias" if second else "mlp.expert_bias"
    if own.startswith("experts."):
        return f"mlp.{own}_proj.weight"
    if own.startswith("shared."):
        place = "mlp.shared_experts" if second else "shared_expert"
        return f"{place}.{own.removeprefix('shared.')}_proj.weight"
    return names[own] + ".weight"
