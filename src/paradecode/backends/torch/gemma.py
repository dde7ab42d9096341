"""Gemma 4's layers (see :class:`paradecode.models.gemma.Gemma`), as an encoder and as a decoder."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, Transformer, rotate, route
from paradecode.models.config import ModelConfig
from paradecode.models.gemma import Gemma
from paradecode.models.weights import Weights


class GemmaTransformer(Transformer):
    """The computation of DiffusionGemma: rows of text are encoded, rows of a canvas are decoded.

    Attributes:
        canvas: bool [N, 1], whether each row of the current forward belongs to a canvas.
    """

    gemma: Gemma

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, weights, dtype, device)
        assert config.gemma is not None
        self.gemma = config.gemma
        self.activation = partial(F.gelu, approximate="tanh")
        wide = torch.from_numpy(self.gemma.inverse_frequencies()).to(device)
        self.frequencies = torch.cat([self.frequencies, wide])
        self.canvas = torch.zeros(1, 1, dtype=torch.bool, device=device)
        self.full = self.gemma.full

    def cached(self, layer: int) -> tuple[int, int]:
        size, groups = self.gemma.heads(layer, self.config.head_dim, self.config.kv_heads)
        return groups, size

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * self.config.hidden_size**0.5

    def guessed(self, tokens: Tensor, guess: Tensor | None) -> Tensor:
        """Return the input of the decoder, float [K, D].

        Args:
            tokens: int64 [K], tokens of the canvas.
            guess: [K, V], logits of the previous guess, or None before the first guess.
        """
        embedded = self.embed(tokens)
        if guess is not None:
            soft = F.linear(guess.to(self.wide).softmax(-1).to(self.dtype), self.w["embed"].T)
            fed = self._norm(soft * self.config.hidden_size**0.5, "guess.norm")
            embedded = embedded + self._mlp(fed, "guess.")
        return self._bare(embedded)

    def mix(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        name, half, whole = f"layers.{index}.", self.config.head_dim // 2, index in self.full
        size = self.gemma.head_dim if whole else self.config.head_dim
        # The angles of sliding and of full layers lie side by side.
        cos, sin = (part[..., half:] if whole else part[..., :half] for part in (cos, sin))
        h = self._norm(x, name + "attn_norm")
        q, k = (self._linear(h, name + part).unflatten(1, (-1, size)) for part in "qk")
        v = k if whole else self._linear(h, name + "v").unflatten(1, (-1, size))
        q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        # Attention divides scores by sqrt(head size); Gemma does not, so the queries are scaled up.
        mixed = attend(index, rotate(q, cos, sin) * size**0.5, rotate(k, cos, sin), self._bare(v))
        return x + self._norm(self._linear(mixed.flatten(1), name + "o"), name + "after_attn")

    def feed(self, index: int, x: Tensor) -> Tensor:
        name, mixture = f"layers.{index}.", self.config.mixture
        assert mixture is not None
        dense = self._mlp(self._norm(x, name + "mlp_norm"), name)
        heard = self._bare(x) * self.w[name + "router.scale"] * self.config.hidden_size**-0.5
        scores = F.linear(heard.to(self.wide), self.w[name + "router"].to(self.wide))
        weights, chosen = route(scores, None, mixture)
        weights = weights * self.w[name + "router.gain"].to(self.wide)[chosen]
        h = self._norm(x, name + "experts_norm")
        sparse = self._sent(h, name, weights.to(h.dtype), chosen, torch.zeros_like(h))
        both = self._norm(dense, name + "after_mlp") + self._norm(sparse, name + "after_experts")
        x = x + self._norm(both, name + "after_feed")
        return x * torch.where(self.canvas, self.w[name + "canvas_scale"], self.w[name + "scale"])

    def logits(self, x: Tensor) -> Tensor:
        cap = self.gemma.softcap
        return torch.tanh(super().logits(x) / cap) * cap

    def _bare(self, x: Tensor) -> Tensor:
        """Return the RMSNorm of ``x`` without a gain."""
        wide = x.to(self.wide)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (wide * scale).to(x.dtype)
