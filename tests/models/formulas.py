"""Formulas of models' layers in float64, and random weights, for oracles in tests."""

from __future__ import annotations

import numpy as np


def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    noise = random.standard_normal(shape).astype(np.float32)
    scale = np.float32(1.2 / np.sqrt(shape[-1]))
    return np.float32(0.3) * noise + 1 if len(shape) == 1 else noise * scale


def rms(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * gain


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def turned(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotate [rows, heads, size] by position."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cosine, sine, first, second = (
        np.cos(angles)[:, None], np.sin(angles)[:, None], x[..., :half], x[..., half:],
    )  # fmt: skip
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return what causal attention mixes; key heads are repeated for the heads of their group."""
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(len(q), -1)
