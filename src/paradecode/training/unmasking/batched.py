"""A diffusion model in PyTorch for training: whole canvases in, states out, with gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights


class BatchedModel:
    """The torch backend's arithmetic over rectangular batches, without a cache.

    Args:
        config, weights: of an opened checkpoint.
        device: where the float32 weights are.

    Attributes:
        parameters: canonical name -> weight; ask for gradients to train them.
    """

    def __init__(self, config: ModelConfig, weights: Weights, device: torch.device) -> None:
        self.config, self.device = config, device
        self._core = Transformer(config, weights, torch.float32, device)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self._core.w

    def states(self, tokens: Tensor, inside: Tensor) -> Tensor:
        """Final states before the last norm, [B, T, D].

        Args:
            tokens: int64 [B, T].
            inside: bool [B, T]: positions of the canvas; the others are padding.
        """
        count, length = tokens.shape
        places = torch.arange(length, device=self.device)
        seen = self.seen(places)[None] & inside[:, None, :]
        seen |= torch.eye(length, dtype=torch.bool, device=self.device)  # Padding sees itself.
        cos, sin = self._core.angles(places.repeat(count))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.unflatten(0, (count, length)).transpose(1, 2) for x in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, seen[:, None], enable_gqa=True)
            return mixed.transpose(1, 2).flatten(0, 1)

        x = self._core.embed(tokens.flatten())
        for layer in range(self.config.layers):
            x = self._core.layer(layer, x, cos, sin, attend)
        return x.unflatten(0, (count, length))

    def logits(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., V], the mask token banned."""
        logits = self._core.logits(states.flatten(0, -2)).unflatten(0, states.shape[:-1])
        banned = torch.zeros(self.config.vocab_size, device=self.device)
        if self.config.mask_token is not None:
            banned[self.config.mask_token] = -torch.inf
        return logits + banned

    def about(self, states: Tensor) -> Tensor:
        """[B, T, D]: row p becomes the state that is about position p, in models that shift."""
        return torch.cat([states[:, :1], states[:, :-1]], 1) if self.config.shift else states

    def groups(self, places: Tensor) -> Tensor:
        """int64 [T]: a row sees rows of its own group and of lower ones."""
        sizes = {"full": len(places), "causal": 1}
        return places // sizes.get(self.config.attention, self.config.block_length)

    def seen(self, places: Tensor) -> Tensor:
        """bool [T, T]: which rows each row sees."""
        c = self.config
        groups = self.groups(places)
        seen = groups[None, :] <= groups[:, None]
        if c.sliding_window:
            seen = seen & (places[None, :] > places[:, None] - c.sliding_window)
        return seen
