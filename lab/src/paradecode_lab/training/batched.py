"""Models in PyTorch for training: rectangular batches with gradients and without a cache.

Texts of a batch differ in length. Only the needed columns go through the layers; attention alone
uses the whole rectangle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Attend, Transformer
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights


def final_states(
    model: Transformer, tokens: Tensor, places: Tensor, seen: Tensor, inside: Tensor | None = None
) -> Tensor:
    """States [B, T, D] before the last norm.

    Args:
        tokens: int64 [B, T].
        places: int64 [T] or [B, T], the position of each column.
        seen: bool [T, T] or [B, 1, T, T]; entry (i, j) says that column i sees column j.
        inside: bool [B, T], the columns to compute, which see no other columns. The states of all
            others are 0. None computes all.
    """
    inside = torch.ones_like(tokens, dtype=torch.bool) if inside is None else inside
    cos, sin = model.angles(places.expand(tokens.shape)[inside])
    attend = attention_in(inside, seen)
    x = model.embed(tokens[inside])
    for layer in range(model.config.layers):
        x = model.layer(layer, x, cos, sin, attend)
    return spread(x, inside)


def attention_in(inside: Tensor, seen: Tensor) -> Attend:
    """The attention of the columns ``inside`` of a batch, which see what ``seen`` says.

    Args:
        inside, seen: see :func:`final_states`; the backend's rows are the columns inside, one text
            behind the other.
    """
    at = inside.flatten().nonzero()[:, 0]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Fused kernels that take a mask do not support grouped queries, so repeat the heads here.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        q, k, v = (spread(x, inside).transpose(1, 2) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
        return mixed.flatten(0, 1).index_select(0, at)

    return attend


def spread(x: Tensor, inside: Tensor) -> Tensor:
    """Rows [N, ...] in their places [B, T, ...], and 0 in the others.

    Args:
        inside: bool [B, T] with N that are true.
    """
    if len(x) == inside.numel():
        return x.unflatten(0, inside.shape)
    wide = x.new_zeros(inside.numel(), *x.shape[1:])
    at = inside.flatten().nonzero()[:, 0]
    return wide.index_copy(0, at, x).unflatten(0, inside.shape)


def banned(logits: Tensor, token: int | None) -> Tensor:
    """The logits [..., V] with minus infinity for ``token``."""
    if token is None:
        return logits
    ban = torch.zeros(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    ban[token] = -torch.inf
    return logits + ban


class BatchedModel(Transformer):
    """A diffusion model in float32, over canvases that may be padded.

    Attributes:
        parameters: canonical name -> weight; call ``requires_grad_`` on those to train.
    """

    def __init__(self, config: ModelConfig, weights: Weights, device: torch.device) -> None:
        super().__init__(config, weights, torch.float32, device)
        self.parameters: dict[str, Tensor] = self.w

    def states(self, tokens: Tensor, inside: Tensor) -> Tensor:
        """States [B, T, D] before the last norm.

        Args:
            tokens: int64 [B, T].
            inside: bool [B, T], true for positions of the canvas and false for padding.
        """
        places = torch.arange(tokens.shape[1], device=self.device)
        seen = self.seen(places)[None] & inside[:, None, :]
        seen |= torch.eye(len(places), dtype=torch.bool, device=self.device)  # Padding sees itself.
        return final_states(self, tokens, places, seen[:, None])

    def logits(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., V]: the logits of states, with the mask token banned."""
        return banned(super().logits(x), self.config.mask_token)

    def about(self, states: Tensor) -> Tensor:
        """[B, T, D]: row p is the state that predicts position p, also in models that shift."""
        return torch.cat([states[:, :1], states[:, :-1]], 1) if self.config.shift else states

    def groups(self, places: Tensor) -> Tensor:
        """int64 [T], the group of each row; a row sees rows of its own and of lower groups."""
        sizes = {"full": len(places), "causal": 1}
        return places // sizes.get(self.config.attention, self.config.block_length)

    def seen(self, places: Tensor) -> Tensor:
        """bool [T, T]: which rows each row sees."""
        groups, window = self.groups(places), self.config.sliding_window
        seen = groups[None, :] <= groups[:, None]
        return seen & (places[None, :] > places[:, None] - window) if window else seen
