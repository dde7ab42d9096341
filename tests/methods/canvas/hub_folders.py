"""Tiny random models in folders as the published ones have: config.json and tensor names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from paradecode.models.config import ModelConfig
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor, Weights
from tiny_folder import stored_name

FAMILIES = ("llada", "dream", "sdar", "fast-dllm-v2")


def tiny_model(family: str) -> tuple[ModelConfig, Weights]:
    """The model of a fixture: float32, and its mask token has logit 0 everywhere.

    The others' standard deviation is about 4, so no sampler ever proposes the mask token: the
    published samplers do not ban it, and trained models never say it.
    """
    seed = {"llada": 11, "dream": 12, "sdar": 13, "fast-dllm-v2": 15}[family]
    config, weights = tiny_checkpoint("dream" if family == "fast-dllm-v2" else family, seed=seed)
    if family == "fast-dllm-v2":
        config = replace(config, architecture="qwen2", attention="block", block_length=8)
    head = weights["head"].float32().copy()
    head[config.mask_token] = 0.0
    return config, {**weights, "head": Tensor(head, head.shape)}


def write_folder(family: str, folder: Path) -> None:
    """``config.json`` and ``model.safetensors`` of :func:`tiny_model`, as the hub has them."""
    config, weights = tiny_model(family)
    (folder / "config.json").write_text(json.dumps(_settings(family, config), indent=1))
    named = {stored_name(family, name): tensor.float32() for name, tensor in weights.items()}
    save_file({k: np.ascontiguousarray(v) for k, v in named.items()}, folder / "model.safetensors")


def _settings(family: str, c: ModelConfig) -> dict[str, Any]:
    if family == "llada":
        return {
            "architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu",
            "alibi": False, "attention_dropout": 0.0, "attention_layer_norm": False,
            "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama",
            "d_model": c.hidden_size, "embedding_dropout": 0.0, "embedding_size": c.vocab_size,
            "eos_token_id": 0, "flash_attention": False, "include_bias": False,
            "include_qkv_bias": False, "input_emb_norm": False, "layer_norm_type": "rms",
            "layer_norm_with_affine": True, "mask_token_id": c.mask_token,
            "max_sequence_length": c.context_length, "mlp_hidden_size": c.intermediate_size,
            "mlp_ratio": 4, "multi_query_attention": None, "n_heads": c.heads,
            "n_kv_heads": c.kv_heads, "n_layers": c.layers, "pad_token_id": 0,
            "residual_dropout": 0.0, "rms_norm_eps": c.norm_eps, "rope": True,
            "rope_full_precision": True, "rope_theta": c.rope.theta, "scale_logits": False,
            "vocab_size": c.vocab_size, "weight_tying": False,
        }  # fmt: skip
    values = {
        "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
        "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.context_length, "max_window_layers": 28,
        "num_attention_heads": c.heads, "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.norm_eps, "rope_scaling": None,
        "rope_theta": c.rope.theta, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": c.vocab_size,
    }  # fmt: skip
    if family == "dream":
        return {
            "architectures": ["DreamModel"], "model_type": "Dream", "mask_token_id": c.mask_token,
            "pad_token_id": 0, **values,
        }  # fmt: skip
    if family == "sdar":
        return {
            "architectures": ["SDARForCausalLM"], "model_type": "sdar", "attention_bias": False,
            "block_size": c.block_length, "fuse_cross_entropy": True, "head_dim": c.head_dim,
            "mask_token_id": c.mask_token, **values,
        }  # fmt: skip
    return {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen",
        "bd_size": c.block_length, "mask_token_id": c.mask_token, **values,
    }  # fmt: skip
