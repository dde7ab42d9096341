"""Rotary wavelengths: the inverse frequencies of every scaling, as transformers computes them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paradecode.models.config import Rope


def inverse_frequencies(rope: Rope) -> NDArray[np.float32]:
    """float32 [dim / 2]: radians per position of each rotated pair."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    plain = rope.theta**-exponents
    if rope.scaling == "linear":
        plain = plain / rope.factor
    elif rope.scaling == "llama3":
        plain = _llama3(rope, plain)
    elif rope.scaling == "yarn":
        plain = _yarn(rope, plain)
    return plain.astype(np.float32)


def _llama3(rope: Rope, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Long wavelengths are divided by the factor, short ones stay, those between are blended."""
    wavelengths = 2 * math.pi / plain
    blend = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: Rope, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pairs that turn often within the original context stay, those that do not are divided."""

    def pair_that_turns(rotations: float) -> float:
        turns = rope.original_context / (rotations * 2 * math.pi)
        return rope.dim * math.log(turns) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(rope.beta_slow)), rope.dim - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(rope.dim // 2) - low) / width, 0.0, 1.0)
    return plain / rope.factor * ramp + plain * (1 - ramp)
