"""Gemma 4's layers in DiffusionGemma, with norms on both sides, experts beside an MLP, and two
kinds of attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidModel

Shapes = dict[str, tuple[int, ...]]
AROUND = ("attn_norm", "after_attn", "mlp_norm", "after_mlp", "experts_norm", "after_experts",
          "after_feed")  # fmt: skip
"""Gains [D] of a layer's norms: before and after its attention, its MLP and its experts, and after
the sum of MLP and experts."""


@dataclass(frozen=True)
class Gemma:
    """Facts about Gemma 4's layers beside those of :class:`paradecode.models.config.ModelConfig`.

    Most layers see ``sliding_window`` positions and have the configuration's heads. A few layers
    have full attention; they have wider heads, and their keys are also their values. A model runs
    in two modes: as an encoder, which writes text into the cache, and as a decoder, which reads the
    cache and guesses all tokens of a canvas at once.

    Attributes:
        full: layers with full attention.
        head_dim, kv_heads: size and number of the key heads of full layers.
        theta: base of the wavelengths of full layers' rotary positions.
        turned: how many of the ``head_dim / 2`` pairs of a head are rotated in full layers.
        softcap: logits are ``softcap * tanh(logits / softcap)``.
        canvas: number of positions of a canvas.
    """

    full: frozenset[int]
    head_dim: int
    kv_heads: int
    theta: float
    turned: int
    softcap: float
    canvas: int

    def __post_init__(self) -> None:
        checks = {
            "head_dim": whole(2, 4096), "kv_heads": whole(1, 1024), "canvas": whole(1, 1 << 16),
            "theta": number(1, 1e12, above=True), "softcap": number(0, 1e6, above=True),
        }  # fmt: skip
        attributes(self, checks, "gemma.", InvalidModel)
        if self.head_dim % 2 or not 0 <= self.turned <= self.head_dim // 2:
            fix = f"a head of {self.head_dim} numbers has pairs, which turn or do not"
            raise InvalidModel("gemma.turned", self.turned, fix)

    def heads(self, layer: int, head_dim: int, kv_heads: int) -> tuple[int, int]:
        """Return the head size and the number of key heads of a layer.

        The arguments ``head_dim`` and ``kv_heads`` are those of sliding layers.
        """
        return (self.head_dim, self.kv_heads) if layer in self.full else (head_dim, kv_heads)

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """Return each pair's angle per position in full layers, float64 [head_dim / 2]."""
        turning = self.theta ** -(np.arange(0, 2 * self.turned, 2) / self.head_dim)
        return np.concatenate([turning, np.zeros(self.head_dim // 2 - self.turned)])

    def attention(self, layer: int, d: int, heads: int, head_dim: int, kv_heads: int) -> Shapes:
        """Return name in a layer -> shape of its attention, its norms and its factors.

        ``scale`` is the factor of a layer's output in the encoder, ``canvas_scale`` in the decoder.
        """
        size, groups = self.heads(layer, head_dim, kv_heads)
        shapes: Shapes = dict.fromkeys(AROUND, (d,))
        shapes |= {"q": (heads * size, d), "k": (groups * size, d), "o": (d, heads * size)}
        if layer not in self.full:
            shapes["v"] = (groups * size, d)
        shapes |= {"q_norm": (size,), "k_norm": (size,), "scale": (1,), "canvas_scale": (1,)}
        return shapes

    @staticmethod
    def around(d: int, inner: int) -> Shapes:
        """Return name -> shape of the network that feeds the last guess of a canvas back."""
        return {
            "guess.norm": (d,), "guess.gate": (inner, d), "guess.up": (inner, d),
            "guess.down": (d, inner),
        }  # fmt: skip
