"""Writes folders of tiny random models, with config.json and tensor names of published models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from published import write_config
from safetensors.numpy import save_file

from paradecode.models.config import ModelConfig
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor, Weights
from tiny_folder import stored_name

FAMILIES = {
    "llada": "LLaDA-8B-Instruct", "dream": "Dream-v0-Instruct-7B", "sdar": "SDAR-8B-Chat-b16",
    "fast-dllm-v2": "Fast_dLLM_v2_1.5B",
}  # fmt: skip
"""Family -> a published checkpoint of it."""


def tiny_model(family: str) -> tuple[ModelConfig, Weights]:
    """Return the model of a fixture: float32, and its mask token always has logit 0.

    The logits of the other tokens have a standard deviation of about 4, so no sampler ever proposes
    the mask token. The published samplers do not ban it, because trained models never propose it.
    """
    seed = {"llada": 11, "dream": 12, "sdar": 13, "fast-dllm-v2": 15}[family]
    config, weights = tiny_checkpoint("dream" if family == "fast-dllm-v2" else family, seed=seed)
    if family == "fast-dllm-v2":
        config = replace(config, architecture="qwen2", attention="block", block_length=8)
    head = weights["head"].float32().copy()
    head[config.mask_token] = 0.0
    return config, {**weights, "head": Tensor(head, head.shape)}


def write_folder(family: str, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` of :func:`tiny_model`, as on the hub."""
    config, weights = tiny_model(family)
    blocks = {"sdar": "block_size", "fast-dllm-v2": "bd_size"}
    more = {blocks[family]: config.block_length} if family in blocks else {}
    write_config(folder, FAMILIES[family], config, **more)
    named = {stored_name(family, name): tensor.float32() for name, tensor in weights.items()}
    save_file({k: np.ascontiguousarray(v) for k, v in named.items()}, folder / "model.safetensors")
