"""A Llama-family forward over packed rows, written to be read. Every other core is tested
against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.models.weights import Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, d], k [N, G, d], v [N, G, d]) -> [N, H, d]; stores k and v where it must."""


class Transformer:
    """Weights on a device, and the arithmetic between the caches.

    Args:
        config: the architecture.
        weights: canonical name -> tensor.
        dtype: type of weights and activations; norms, softmax and rotary angles use at least fp32.
        device: a torch device.

    Attributes:
        kv_heads: the K/V heads, G, that this process computes.
        activation: activation function of the MLPs.
        full: layers that see the whole text, where the others see a window.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.kv_heads = config.kv_heads
        self.activation: Callable[[Tensor], Tensor] = F.silu
        self.full: frozenset[int] = frozenset()
        self.w = {name: self.placed(name, weights) for name in config.tensors()}
        self.frequencies = torch.from_numpy(config.rope.inverse_frequencies()).to(device)

    def placed(self, name: str, weights: Weights) -> Tensor:
        """A weight on the device."""
        return torch.tensor(weights[name].float32(), device=self.device, dtype=self.dtype)

    def cached(self, layer: int) -> tuple[int, int]:
        """Number and size of the K/V heads that a layer has here."""
        return self.kv_heads, self.config.head_dim

    def embed(self, tokens: Tensor) -> Tensor:
        """int64 [N] -> [N, D]: the embeddings of tokens."""
        return F.embedding(tokens, self.w["embed"])

    def layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """[N, D] -> [N, D]: a layer, that is attention and gated MLP."""
        return self.feed(index, self.mix(index, x, cos, sin, attend))

    def mix(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """[N, D] -> [N, D]: the attention half of a layer."""
        c, name = self.config, f"layers.{index}."
        h = self._norm(x, name + "attn_norm")
        q = self._linear(h, name + "q").unflatten(1, (-1, c.head_dim))
        k = self._linear(h, name + "k").unflatten(1, (-1, c.head_dim))
        v = self._linear(h, name + "v").unflatten(1, (-1, c.head_dim))
        if c.qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        mixed = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
        return x + self._linear(mixed.flatten(1), name + "o")

    def feed(self, index: int, x: Tensor) -> Tensor:
        """[N, D] -> [N, D]: the MLP half of a layer, or its experts."""
        mixture, name = self.config.mixture, f"layers.{index}."
        h = self._norm(x, name + "mlp_norm")
        if mixture is None or index in mixture.dense:
            return x + self._mlp(h, name)
        return x + self._experts(h, name, mixture)

    def _mlp(self, h: Tensor, name: str) -> Tensor:
        """[N, D] -> [N, D]: the gated MLP with the weights below ``name``."""
        gated = self.activation(self._linear(h, name + "gate")) * self._linear(h, name + "up")
        return self._linear(gated, name + "down")

    def _experts(self, h: Tensor, name: str, mixture: Mixture) -> Tensor:
        """[N, D] -> [N, D]: the weighted sum of the experts that each row was sent to."""
        weights, chosen = route(
            F.linear(h.to(self.wide), self.w[name + "router"].to(self.wide)),
            self.w[name + "router.bias"].to(self.wide) if mixture.bias else None,
            mixture,
        )
        mixed = self._mlp(h, name + "shared.") if mixture.shared_size else torch.zeros_like(h)
        return self._sent(h, name, weights.to(h.dtype), chosen, mixed)

    def _sent(self, h: Tensor, name: str, weights: Tensor, chosen: Tensor, mixed: Tensor) -> Tensor:
        """[N, D]: ``mixed`` plus the results of the ``chosen`` experts [N, k] of each row."""
        for expert in chosen.unique().tolist():
            rows, places = torch.nonzero(chosen == expert, as_tuple=True)
            part = self._mlp(h[rows], f"{name}experts.{expert}.") * weights[rows, places, None]
            mixed.index_add_(0, rows, part)
        return mixed

    def logits(self, x: Tensor) -> Tensor:
        """[R, D] -> [R, V]: the final norm and the LM head, in at least fp32."""
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


def route(logits: Tensor, bias: Tensor | None, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Weights [N, chosen] and experts, int64 [N, chosen], from a router's logits [N, experts]."""
    scores = logits.sigmoid() if mixture.score == "sigmoid" else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias
    weights = ranked if mixture.biased_weights else scores
    if mixture.groups > 1:
        grouped = ranked.unflatten(-1, (mixture.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(mixture.chosen_groups, -1).indices
        left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        ranked = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
    chosen = ranked.topk(mixture.chosen, -1).indices
    weights = weights.gather(-1, chosen)
    if mixture.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * mixture.scale, chosen


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


def attention_weights(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """The shares [A, H, S] of the keys k [S, G, d] in the attention of the queries q [A, H, d].

    Args:
        seen: bool [A, S]; a key that is not seen has the share 0.
    """
    grouped = (q * q.shape[-1] ** -0.5).unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("aghd,sgd->aghs", grouped, k).flatten(1, 2)
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    return wide.masked_fill(~seen[:, None], -torch.inf).softmax(-1)


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along rows; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
