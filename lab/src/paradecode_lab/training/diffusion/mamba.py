"""Heads of Mamba-2 in PyTorch, for training on dense batches; modules are named as Granite's."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradecode.models.recurrence import Recurrence


class Mamba2(nn.Module):
    """Heads of values, whose groups share keys and queries (arXiv 2405.21060), for equal lengths.

    A row's output is computed from the rows before it, as attention's is: their states would be the
    same sum in another order. This costs T * T numbers for each head, which short texts can afford.

    Args:
        part: the heads, with a norm for each group.
        hidden: width of the residual stream.
        eps: epsilon of the norm.
    """

    def __init__(self, part: Recurrence, hidden: int, eps: float) -> None:
        super().__init__()
        self.part = part
        mixed = part.values + 2 * part.keys
        self.in_proj = nn.Linear(hidden, part.values + mixed + part.heads, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, part.width, groups=mixed)
        self.dt_bias = nn.Parameter(torch.empty(part.heads))
        self.A_log = nn.Parameter(torch.empty(part.heads))
        self.D = nn.Parameter(torch.ones(part.heads))
        self.norm = nn.RMSNorm(part.values, eps)
        self.out_proj = nn.Linear(part.values, hidden, bias=False)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the taps, decays of 1 to 16, and steps of 0.001 to 0.1, as Mamba-2 begins."""
        nn.init.normal_(self.conv1d.weight, 0, self.part.width**-0.5, generator)
        nn.init.zeros_(self.conv1d.bias)
        self.A_log.uniform_(1, 16, generator=generator).log_()
        self.dt_bias.uniform_(math.log(0.001), math.log(0.1), generator=generator)
        self.dt_bias.exp_().expm1_().log_()

    def forward(self, h: Tensor) -> Tensor:
        """Mix the rows of a batch: [B, T, D] -> [B, T, D]."""
        part = self.part
        sizes = [part.values, self.conv1d.in_channels, part.heads]
        z, mixed, asked = self.in_proj(h).split(sizes, -1)
        x, key, query = self._convolved(mixed).split([part.values, part.keys, part.keys], -1)
        step = F.softplus(asked.float() + self.dt_bias).mT  # [B, H, T]
        fall = (-self.A_log.exp()[:, None] * step).cumsum(-1)
        length = h.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=h.device).tril()
        decay = (fall[..., None] - fall[..., None, :]).masked_fill(~seen, -torch.inf).exp()
        key, query, heads = (
            each.unflatten(-1, (count, -1)).transpose(1, 2)
            for each, count in ((key, part.key_heads), (query, part.key_heads), (x, part.heads))
        )
        alike = (query @ key.mT).repeat_interleave(part.heads // part.key_heads, 1)
        weights = alike * decay * step[..., None, :]
        y = weights.to(x.dtype) @ heads + self.D[:, None, None] * heads
        gated = y.transpose(1, 2).flatten(2) * F.silu(z)
        groups = gated.unflatten(-1, (part.norm_groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], eps=self.norm.eps).flatten(2)
        return self.out_proj(normed * self.norm.weight)

    def _convolved(self, rows: Tensor) -> Tensor:
        """Return the SiLU of the convolution over each row and the rows before it.

        On a CPU, PyTorch's convolution takes longer than these few products.
        """
        width, length = self.part.width, rows.shape[1]
        padded = F.pad(rows, (0, 0, width - 1, 0))
        taps = self.conv1d.weight.squeeze(1)
        found = sum(padded[:, j : j + length] * taps[:, j] for j in range(width))
        return F.silu(found + self.conv1d.bias)
