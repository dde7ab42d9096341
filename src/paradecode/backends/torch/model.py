"""A Llama-family forward over packed rows, written to be read: the oracle of every other core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, d], k [N, G, d], v [N, G, d]) -> [N, H, d]; stores k and v where asked."""


class Transformer:
    """Weights on a device, and the arithmetic between the caches.

    Args:
        config: the architecture.
        weights: canonical names to tensors.
        dtype: of weights and activations; norms, softmax and rotary angles use at least fp32.
        device: a torch device.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.w = {
            name: torch.tensor(weights[name].float32(), device=device, dtype=dtype)
            for name in config.tensors()
        }
        self.frequencies = torch.from_numpy(config.rope.inverse_frequencies()).to(device)

    def embed(self, tokens: Tensor) -> Tensor:
        """int64 [N] -> [N, D]."""
        return F.embedding(tokens, self.w["embed"])

    def layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """[N, D] -> [N, D], through attention and the gated MLP."""
        c, name = self.config, f"layers.{index}."
        h = self._norm(x, name + "attn_norm")
        q = self._linear(h, name + "q").view(-1, c.heads, c.head_dim)
        k = self._linear(h, name + "k").view(-1, c.kv_heads, c.head_dim)
        v = self._linear(h, name + "v").view(-1, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        mixed = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self._linear(mixed.flatten(1), name + "o")
        h = self._norm(x, name + "mlp_norm")
        gated = F.silu(self._linear(h, name + "gate")) * self._linear(h, name + "up")
        return x + self._linear(gated, name + "down")

    def logits(self, x: Tensor) -> Tensor:
        """[R, D] -> [R, V], after the final norm; at least fp32."""
        head = self.w["embed" if self.config.tied_head else "head"]
        return F.linear(self._norm(x, "norm"), head).to(self.wide)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [N] -> cosines and sines [N, 1, rope.dim / 2]."""
        angle = positions[:, None].to(torch.float64) * self.frequencies
        scale = self.config.rope.attention_factor
        cos, sin = (scale * angle.cos()).to(self.wide), (scale * angle.sin()).to(self.wide)
        return cos[:, None, :], sin[:, None, :]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[name], self.w.get(name + ".bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(self.wide)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (wide * scale).to(x.dtype) * self.w[name]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading ``2 * cos.shape[-1]`` dimensions of [N, H, d], pairing i with i + half."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    wide_a, wide_b = a.to(cos.dtype), b.to(cos.dtype)
    turned = torch.cat([wide_a * cos - wide_b * sin, wide_b * cos + wide_a * sin], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Grouped-query attention of one sequence.

    q [K, H, d]; k, v [S, G, d]; seen bool [K, S]. Returns [K, H, d].
    """
    return F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=seen[None, None],
        enable_gqa=True,
    )[0].transpose(0, 1)


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along rows; one part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
