"""A plain Llama-family forward over packed rows; tests compare every other core with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.models.weights import Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, d], k [N, G, d], v [N, G, d]) -> attention [N, H, d]; also stores k and v."""


class Transformer:
    """A model's weights on a device, and all of its computation except the caches.

    Args:
        config: the architecture.
        weights: canonical name -> tensor.
        dtype: type of weights and activations; norms, softmax and rotary angles use at least fp32.
        device: a torch device.

    Attributes:
        kv_heads: G, the number of K/V heads that this process computes.
        activation: activation function of the MLPs.
        full: layers with full attention, if the other layers have a sliding window.
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
        """Return a weight as a tensor on the device."""
        return torch.tensor(weights[name].float32(), device=self.device, dtype=self.dtype)

    def cached(self, layer: int) -> tuple[int, int]:
        """Return the number and the size of the K/V heads that a layer has in this process."""
        return self.kv_heads, self.config.head_dim

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens: int64 [N] -> [N, D]."""
        return F.embedding(tokens, self.w["embed"])

    def layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Run a whole layer, attention and gated MLP: [N, D] -> [N, D]."""
        return self.feed(index, self.mix(index, x, cos, sin, attend))

    def mix(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Run the attention half of a layer: [N, D] -> [N, D]."""
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
        """Run the MLP half of a layer, or its experts: [N, D] -> [N, D]."""
        mixture, name = self.config.mixture, f"layers.{index}."
        h = self._norm(x, name + "mlp_norm")
        if mixture is None or index in mixture.dense:
            return x + self._mlp(h, name)
        return x + self._experts(h, name, mixture)

    def _mlp(self, h: Tensor, name: str) -> Tensor:
        """Run the gated MLP whose weights' names begin with ``name``: [N, D] -> [N, D]."""
        gated = self.activation(self._linear(h, name + "gate")) * self._linear(h, name + "up")
        return self._linear(gated, name + "down")

    def _experts(self, h: Tensor, name: str, mixture: Mixture) -> Tensor:
        """Return the weighted sum of the experts chosen for each row: [N, D] -> [N, D]."""
        weights, chosen = route(
            F.linear(h.to(self.wide), self.w[name + "router"].to(self.wide)),
            self.w[name + "router.bias"].to(self.wide) if mixture.bias else None,
            mixture,
        )
        mixed = self._mlp(h, name + "shared.") if mixture.shared_size else torch.zeros_like(h)
        return self._sent(h, name, weights.to(h.dtype), chosen, mixed)

    def _sent(self, h: Tensor, name: str, weights: Tensor, chosen: Tensor, mixed: Tensor) -> Tensor:
        """Return ``mixed`` [N, D] plus the weighted results of the ``chosen`` experts [N, k]."""
        for expert in chosen.unique().tolist():
            rows, places = torch.nonzero(chosen == expert, as_tuple=True)
            part = self._mlp(h[rows], f"{name}experts.{expert}.") * weights[rows, places, None]
            mixed.index_add_(0, rows, part)
        return mixed

    def logits(self, x: Tensor) -> Tensor:
        """Apply the final norm and the LM head, in at least fp32: [R, D] -> [R, V]."""
        head = self.w["embed" if self.config.tied_head else "head"]
        return F.linear(self._norm(x, "norm"), head).to(self.wide)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary cosines and sines: int64 [N] -> two tensors [N, 1, rope.dim / 2]."""
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
    """Return weights [N, chosen] and experts, int64 [N, chosen], for logits [N, experts]."""
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
    """Compute the grouped-query attention of one sequence.

    Args:
        q: [K, H, d].
        k, v: [S, G, d].
        seen: bool [K, S].

    Returns:
        [K, H, d].
    """
    return F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=seen[None, None],
        enable_gqa=True,
    )[0].transpose(0, 1)


def attention_weights(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Return the attention weights [A, H, S] of queries q [A, H, d] over keys k [S, G, d].

    Args:
        seen: bool [A, S]; a key that is not seen has weight 0.
    """
    grouped = (q * q.shape[-1] ** -0.5).unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("aghd,sgd->aghs", grouped, k).flatten(1, 2)
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    return wide.masked_fill(~seen[:, None], -torch.inf).softmax(-1)


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along rows; a single tensor is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
