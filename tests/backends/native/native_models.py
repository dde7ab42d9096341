"""Tiny random models, and a straightforward NumPy forward to compare the native core with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paradecode.backends.interface import PAGE, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.layers import Half, Layer
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.weights import Kind, Tensor

BASE = ModelConfig(
    name="tiny", architecture="llama", vocab_size=100, hidden_size=64, layers=3, heads=4,
    kv_heads=2, head_dim=16, intermediate_size=96, context_length=512, rope=Rope(dim=16),
)  # fmt: skip

CONFIGS = {
    "grouped": BASE,
    "multi_head": replace(BASE, kv_heads=4, tied_head=True),
    "multi_query": replace(BASE, heads=8, kv_heads=1, head_dim=8, rope=Rope(dim=8)),
    "biases": replace(BASE, qkv_bias=True, output_bias=True, mlp_bias=True),
    "qk_norm": replace(BASE, qk_norm=True, head_dim=32, rope=Rope(dim=32)),
    "partial": replace(BASE, head_dim=24, rope=Rope(dim=12), qkv_bias=True),
    "odd_sizes": replace(
        BASE, vocab_size=77, hidden_size=52, intermediate_size=83, heads=6, kv_heads=3, head_dim=40,
        rope=Rope(dim=40), qkv_bias=True,
    ),
    "wide_heads": replace(BASE, heads=14, kv_heads=2, head_dim=128, rope=Rope(dim=128), layers=1),
    "widest_heads": replace(BASE, heads=2, kv_heads=1, head_dim=256, rope=Rope(dim=256), layers=1),
    "linear": replace(BASE, rope=Rope(dim=16, scaling="linear", factor=4.0)),
    "llama3": replace(
        BASE,
        rope=Rope(
            theta=500.0, dim=16, scaling="llama3", factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_context=64,
        ),
    ),
    "yarn": replace(
        BASE,
        rope=Rope(
            dim=16, scaling="yarn", factor=4.0, original_context=64, attention_factor=1.1386,
        ),
    ),
    "window": replace(BASE, sliding_window=7),
}  # fmt: skip


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensors().items():
        if len(shape) == 2:
            values = rng.normal(size=shape) * (1.0 if name == "embed" else 2.0 / shape[1] ** 0.5)
        elif name.endswith("norm"):
            values = rng.uniform(0.5, 1.5, size=shape)
        else:
            values = rng.normal(size=shape) * 0.5
        weights[name] = Tensor(values.astype(np.float32), shape, Kind.F32)
    return weights


def make(
    config: ModelConfig, *, seed: int = 0, pages: int = 64, **options: object
) -> NativeBackend:
    backend = NativeBackend(config, random_weights(config, seed), **options)  # type: ignore[arg-type]
    backend.reserve(pages)
    return backend


def span(pages: Sequence[int], tokens: Sequence[int], context: int = 0, **options: object) -> Span:
    """A span of causal rows after ``context``, stored in the slots that follow, with all their
    logits."""
    count = len(tokens)
    after = np.arange(context, context + count, dtype=np.int32)
    fields: dict = {
        "pages": np.asarray(pages, np.int32),
        "tokens": np.asarray(tokens, np.int32),
        "positions": after,
        "slots": after.copy(),
        "context": context,
        "logits": np.arange(count, dtype=np.int32),
    }
    return Span(**{**fields, **options})


def page_count(tokens: int) -> int:
    return -(-tokens // PAGE)


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def frequencies(rope: Rope) -> np.ndarray:
    """Frequencies that are independent of the product's: computed pair by pair from the papers'
    formulas."""
    out = []
    for i in range(rope.dim // 2):
        f = rope.theta ** (-2 * i / rope.dim)
        turns = rope.original_context * f / (2 * np.pi)
        if rope.scaling == "linear":
            f /= rope.factor
        elif rope.scaling == "llama3":
            if turns < rope.low_freq_factor:
                f /= rope.factor
            elif turns <= rope.high_freq_factor:
                s = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
                f = (1 - s) * f / rope.factor + s * f
        elif rope.scaling == "yarn":

            def index(rotations: float) -> float:
                return (
                    rope.dim
                    * np.log(rope.original_context / (rotations * 2 * np.pi))
                    / (2 * np.log(rope.theta))
                )

            low = max(np.floor(index(rope.beta_fast)), 0)
            high = min(np.ceil(index(rope.beta_slow)), rope.dim - 1)
            ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
            f = f / rope.factor * ramp + f * (1 - ramp)
        out.append(f)
    return np.array(out)


def _rotate(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    angle = positions[:, None, None] * frequencies(rope)
    cos, sin = np.cos(angle) * rope.attention_factor, np.sin(angle) * rope.attention_factor
    half = rope.dim // 2
    a, b, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def reference(
    config: ModelConfig,
    weights: dict[str, Tensor],
    tokens: np.ndarray,
    positions: np.ndarray | None = None,
    sees: np.ndarray | None = None,
    states: np.ndarray | None = None,
    layers: Sequence[Layer] | None = None,
    shares: dict[int, np.ndarray] | None = None,
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """float64 forward without a cache: logits [K, V] and the output of every layer.

    ``shares`` is filled with the attention weights [K, heads, K] of every layer.
    """
    w = {name: tensor.float32().astype(np.float64) for name, tensor in weights.items()}
    count = len(tokens)
    positions = np.arange(count) if positions is None else np.asarray(positions)
    sees = np.tri(count, dtype=bool) if sees is None else np.asarray(sees)
    if config.sliding_window:
        sees = sees & (positions[:, None] - positions[None, :] < config.sliding_window)
    x = w["embed"][tokens] if states is None else states.astype(np.float64)
    hidden = {}
    d, group = config.head_dim, config.heads // config.kv_heads
    for layer in range(config.layers) if layers is None else layers:
        index, part = layer if isinstance(layer, Half) else (layer, "both")
        prefix = f"layers.{index}."

        def linear(name: str, value: np.ndarray, prefix: str = prefix) -> np.ndarray:
            return value @ w[prefix + name].T + w.get(prefix + name + ".bias", 0.0)

        if part != "mlp":
            h = _norm(x, w[prefix + "attn_norm"], config.norm_eps)
            q = linear("q", h).reshape(count, config.heads, d)
            k = linear("k", h).reshape(count, config.kv_heads, d)
            v = linear("v", h).reshape(count, config.kv_heads, d)
            if config.qk_norm:
                q = _norm(q, w[prefix + "q_norm"], config.norm_eps)
                k = _norm(k, w[prefix + "k_norm"], config.norm_eps)
            q, k = _rotate(q, positions, config.rope), _rotate(k, positions, config.rope)
            k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
            scores = np.where(sees, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            if shares is not None:
                shares[index] = p.transpose(1, 0, 2)
            x = x + linear("o", np.einsum("hqk,khd->qhd", p, v).reshape(count, -1))
        if part != "attention":
            h = _norm(x, w[prefix + "mlp_norm"], config.norm_eps)
            gate = linear("gate", h)
            x = x + linear("down", gate / (1 + np.exp(-gate)) * linear("up", h))
        hidden[index] = x
    head = w["embed"] if config.tied_head else w["head"]
    return _norm(x, w["norm"], config.norm_eps) @ head.T, hidden
