"""Tiny random models, for tests and for checking decoding methods in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.weights import Kind, Tensor, Weights


@dataclass(frozen=True)
class _Recipe:
    vocab_size: int = 96
    tied_head: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int = 0
    attention: str = "causal"
    block_length: int = 0
    mask_token: int | None = None
    shift: bool = False


# Above 1, so that logits depend on earlier tokens and greedy texts do not repeat one token.
_GAIN = 2.5

KINDS = {
    "llama": _Recipe(),
    "qwen2": _Recipe(vocab_size=112, qkv_bias=True),
    "qwen3": _Recipe(vocab_size=128, tied_head=False, qk_norm=True),
    "mistral": _Recipe(vocab_size=64, tied_head=False, sliding_window=8),
    "llada": _Recipe(tied_head=False, attention="full", mask_token=95),
    "dream": _Recipe(tied_head=False, qkv_bias=True, attention="full", mask_token=95, shift=True),
    "sdar": _Recipe(
        vocab_size=128,
        tied_head=False,
        qk_norm=True,
        attention="block",
        block_length=4,
        mask_token=127,
    ),
}


def tiny_checkpoint(
    kind: str = "llama",
    seed: int = 0,
    dtype: Kind = Kind.F32,
    near_tie: bool = False,
    sharpness: float = 4.0,
) -> tuple[ModelConfig, Weights]:
    """Make a random model; equal arguments give equal bits on every machine.

    Args:
        kind: one of KINDS: ``llama`` (grouped queries, tied head), ``qwen2`` (biases), ``qwen3``
            (norms of queries and keys, own head), ``mistral`` (sliding window of 8, own head);
            models of masked diffusion: ``llada`` (full attention), ``dream`` (the same, biases,
            logits shifted by one), ``sdar`` (blocks of 4, norms of queries and keys).
        seed: seed of the weights.
        dtype: F32, F16 or BF16 storage; norms and biases stay F32.
        near_tie: whether rows 2k and 2k + 1 of the LM head differ by a millionth. The best two
            logits then always nearly tie, and any inexact arithmetic changes a token.
        sharpness: approximate standard deviation of the logits.

    Returns:
        The configuration (2 layers, hidden size 64, id 0 ends a text, no bos) and its weights.
    """
    if kind not in KINDS:
        raise InvalidInput("kind", kind, f"use one of {', '.join(KINDS)}")
    if dtype not in (Kind.F32, Kind.F16, Kind.BF16):
        raise InvalidInput("dtype", dtype, "use F32, F16 or BF16")
    recipe = KINDS[kind]
    config = uniform(
        name=f"tiny-{kind}",
        architecture=kind,
        hidden_size=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        context_length=512,
        rope=Rope(theta=10000.0, dim=16),
        eos_tokens=(0,),
        **vars(recipe),
    )
    return config, random_weights(config, seed, dtype, near_tie, sharpness)


def random_weights(
    config: ModelConfig,
    seed: int = 0,
    dtype: Kind = Kind.F32,
    near_tie: bool = False,
    sharpness: float = 4.0,
) -> Weights:
    """Draw the weights of a small model; the arguments are those of :func:`tiny_checkpoint`."""
    random = np.random.Generator(np.random.PCG64(seed))
    weights: dict[str, Tensor] = {}
    for name, shape in config.tensors().items():
        noise = random.standard_normal(shape, np.float32)
        if name.endswith("norm") or ".after_" in name:
            weights[name] = Tensor(1 + np.float32(0.1) * noise, shape)
        elif name.endswith("bias"):
            weights[name] = Tensor(np.float32(0.1) * noise, shape)
        elif name.endswith("decay"):
            weights[name] = Tensor(-np.exp(np.float32(0.5) * noise), shape)
        elif name.endswith(("taps", "skip", "gain")):
            weights[name] = Tensor(np.float32(0.5) * noise, shape)
        else:
            if near_tie and name == ("embed" if config.tied_head else "head"):
                noise[1::2] = noise[::2] * (1 + np.float32(1e-6) * noise[1::2])
            gain = sharpness if name in ("embed", "head") else _GAIN
            weights[name] = _stored(noise * np.float32(gain / np.sqrt(shape[-1])), dtype)
    return weights


def _stored(values: NDArray[np.float32], dtype: Kind) -> Tensor:
    if dtype == Kind.F32:
        return Tensor(values, values.shape)
    if dtype == Kind.F16:
        return Tensor(values.astype(np.float16), values.shape, dtype)
    # Dropping the low half of a float32 is a valid rounding for random weights.
    return Tensor((values.view(np.uint32) >> 16).astype(np.uint16), values.shape, dtype)
