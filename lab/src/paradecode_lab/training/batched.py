"""Run PyTorch models for training: on rectangular batches, with gradients and without a cache.

Texts of a batch differ in length. The layers compute only the needed columns of the rectangle;
attention alone works on the whole rectangle.
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
    """Return the states [B, T, D] after the last layer, before the last norm.

    Args:
        tokens: int64 [B, T].
        places: int64 [T] or [B, T], the position of each column.
        seen: bool [T, T] or [B, 1, T, T]; entry (i, j) says that column i sees column j.
        inside: bool [B, T], the columns to compute; they must not see other columns. The states of
            the other columns are 0. None computes all columns.
    """
    inside = torch.ones_like(tokens, dtype=torch.bool) if inside is None else inside
    known = model.rows(places.expand(tokens.shape)[inside])
    attend = attention_in(inside, seen)
    x = model.embed(tokens[inside])
    for layer in range(model.config.layers):
        x = model.layer(layer, x, known, attend)
    return spread(x, inside)


def attention_in(inside: Tensor, seen: Tensor) -> Attend:
    """Return an attention function for the columns ``inside`` of a batch.

    Args:
        inside, seen: see :func:`final_states`. The rows that the function gets are the columns
            inside, one text after the other.
    """
    at = inside.flatten().nonzero()[:, 0]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Fused kernels that take a mask do not support grouped queries, so the key and value heads
        # are repeated here.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        q, k, v = (spread(x, inside).transpose(1, 2) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
        return mixed.flatten(0, 1).index_select(0, at)

    return attend


def spread(x: Tensor, inside: Tensor) -> Tensor:
    """Put the rows [N, ...] into a rectangle [B, T, ...] that is 0 elsewhere, and return it.

    Args:
        inside: bool [B, T] with N true entries, the places of the rows in order.
    """
    if len(x) == inside.numel():
        return x.unflatten(0, inside.shape)
    wide = x.new_zeros(inside.numel(), *x.shape[1:])
    at = inside.flatten().nonzero()[:, 0]
    return wide.index_copy(0, at, x).unflatten(0, inside.shape)


def banned(logits: Tensor, token: int | None) -> Tensor:
    """Return the logits [..., V], with minus infinity for ``token``; None bans no token."""
    if token is None:
        return logits
    ban = torch.zeros(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    ban[token] = -torch.inf
    return logits + ban


class BatchedModel(Transformer):
    """A diffusion model in float32 that computes batches of padded canvases.

    Attributes:
        parameters: canonical name -> weight; call ``requires_grad_`` on the weights to train.
    """

    def __init__(self, config: ModelConfig, weights: Weights, device: torch.device) -> None:
        super().__init__(config, weights, torch.float32, device)
        self.parameters: dict[str, Tensor] = self.w

    def states(self, tokens: Tensor, inside: Tensor) -> Tensor:
        """Return the states [B, T, D] after the last layer, before the last norm.

        Args:
            tokens: int64 [B, T].
            inside: bool [B, T], true for positions of the canvas and false for padding.
        """
        places = torch.arange(tokens.shape[1], device=self.device)
        seen = self.seen(places)[None] & inside[:, None, :]
        seen |= torch.eye(len(places), dtype=torch.bool, device=self.device)  # Padding sees itself.
        return final_states(self, tokens, places, seen[:, None])

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] of the states [..., D], with the mask token banned."""
        return banned(super().logits(x), self.config.mask_token)

    def about(self, states: Tensor) -> Tensor:
        """Return states [B, T, D] in which row p is the state that predicts position p.

        In models that shift, position p is predicted by the state before it.
        """
        return torch.cat([states[:, :1], states[:, :-1]], 1) if self.config.shift else states

    def groups(self, places: Tensor) -> Tensor:
        """Return the attention group of each position, int64 [T].

        A position sees the positions of its own group and of lower groups.
        """
        sizes = {"full": len(places), "causal": 1}
        return places // sizes.get(self.config.attention, self.config.block_length)

    def seen(self, places: Tensor) -> Tensor:
        """Return bool [T, T]; entry (i, j) says that row i sees row j."""
        groups, window = self.groups(places), self.config.sliding_window
        seen = groups[None, :] <= groups[:, None]
        return seen & (places[None, :] > places[:, None] - window) if window else seen
