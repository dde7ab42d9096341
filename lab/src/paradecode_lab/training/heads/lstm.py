"""An LSTM layer that returns all its cell states and computes the weights' gradient at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_rows(given: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden and cell states, each [n, m, D], for n texts of m rows.

    PyTorch's layer returns the last cell state only. A loop over its steps would add up one
    gradient of the weights for each row; here one matrix product gives their sum.

    Args:
        given: float32 [n, m, 4 D], what the rows' inputs contribute to the gates (input, forget,
            candidate, output).
        weight: [4 D, D], weights for the hidden states.
        hidden, cell: [n, D], states before the first rows.
    """
    made: tuple[Tensor, Tensor] = _Rows.apply(given, weight, hidden, cell)
    return made


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        given, weight, h, c = inputs
        kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
        hidden, cells, opened = [], [], []
        with torch.autocast("cpu", enabled=False):
            turned = weight.to(kind).T
            for row in range(given.shape[1]):
                i, f, g, o = (given[:, row] + (h.to(kind) @ turned).to(h.dtype)).chunk(4, -1)
                gates = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
                c = gates[1] * c + gates[0] * gates[2]
                h = gates[3] * c.tanh()
                hidden.append(h)
                cells.append(c)
                opened.append(torch.cat(gates, -1))
        h, c = torch.stack(hidden, 1), torch.stack(cells, 1)
        ctx.kind = kind
        ctx.save_for_backward(weight, *inputs[2:], h, c, torch.stack(opened, 1))
        return h, c

    @staticmethod
    def backward(ctx: Any, *asked: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, first, cell, hidden, cells, opened = ctx.saved_tensors
        given = torch.empty_like(opened)
        with torch.autocast("cpu", enabled=False):
            known, dh, dc = weight.to(ctx.kind), torch.zeros_like(first), torch.zeros_like(cell)
            for row in reversed(range(given.shape[1])):
                i, f, g, o = opened[:, row].chunk(4, -1)
                before, now = cells[:, row - 1] if row else cell, cells[:, row].tanh()
                dh = dh + asked[0][:, row]
                dc = dc + asked[1][:, row] + dh * o * (1 - now * now)
                parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g),
                         dh * now * o * (1 - o))  # fmt: skip
                given[:, row] = torch.cat(parts, -1)
                dh, dc = (given[:, row].to(ctx.kind) @ known).to(dc.dtype), dc * f
            earlier = torch.cat([first[:, None], hidden[:, :-1]], 1).flatten(0, 1)
            learnt = given.flatten(0, 1).to(ctx.kind).T @ earlier.to(ctx.kind)
        return given, learnt.to(weight.dtype), dh, dc
