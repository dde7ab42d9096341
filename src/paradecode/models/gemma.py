"""Gemma 4's layers in DiffusionGemma: norms on both sides, experts beside an MLP, and two kinds of
attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidModel

Shapes = dict[str, tuple[int, ...]]
AROUND = ("attn_norm", "after_attn", "mlp_norm", "after_mlp", "experts_norm", "after_experts",
          "after_feed")  # fmt: skip
"""Gains [D] of a layer's norms: in front of and behind its attention, its MLP and its experts, and
behind the sum of the last two."""


@dataclass(frozen=True)
class Gemma:
    """Facts about Gemma 4's layers beside those of :class:`paradecode.models.config.ModelConfig`.

    The majority of layers see ``sliding_window`` positions and have the configuration's heads. A
    few layers see the whole text; they have wider heads, and their keys are values as well. A model
    runs in two ways: as an encoder, which writes text into the cache, and as a decoder, which reads
    it and guesses all tokens of a canvas at once.

    Attributes:
        full: layers that see the whole text.
        head_dim, kv_heads: size and number of the key heads of those layers.
        theta, turned: rotation of those layers: the base of the wavelengths, and how many of the
            ``head_dim / 2`` pairs of a head turn.
        softcap: logits are ``softcap * tanh(logits / softcap)``.
        canvas: positions of a canvas.
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
        """Size of a head and number of key heads of a layer; the arguments are those of the
        usual layers."""
        return (self.head_dim, self.kv_heads) if layer in self.full else (head_dim, kv_heads)

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """float64 [head_dim / 2]: angle per position, in layers that see the whole text."""
        turning = self.theta ** -(np.arange(0, 2 * self.turned, 2) / self.head_dim)
        return np.concatenate([turning, np.zeros(self.head_dim // 2 - self.turned)])

    def attention(self, layer: int, d: int, heads: int, head_dim: int, kv_heads: int) -> Shapes:
        """Name in a layer -> shape of its attention, its norms and its factors.

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
        """Name -> shape of the network that feeds the last guess of a canvas back."""
        return {
            "guess.norm": (d,), "guess.gate": (inner, d), "guess.up": (inner, d),
            "guess.down": (d, inner),
        }  # fmt: skip
