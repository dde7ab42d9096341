"""Parts whose records are states in PyTorch: one row after the other, along its path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.states import StateMemory, StateView, last_inputs, taps
from paradecode.models.small_states import Cells, LinearUnit, SelectiveScan, SmallState

if TYPE_CHECKING:
    from paradecode.backends.torch.model import Transformer

Step = Callable[[int, Tensor, bool], Tensor]
"""A row, the state before it, flat, and whether it is the first of all -> the state behind it."""


def run_small_states(
    model: Transformer, name: str, part: SmallState, h: Tensor, ranges: Sequence[slice],
    views: Sequence[StateView], memory: StateMemory,
) -> Tensor:  # fmt: skip
    """Run a part whose records are states over the rows of a forward: [N, D] -> [N, D].

    Args:
        name: the layer's prefix of names of weights.
        ranges, views: the rows of each span, and its indices.
    """
    made = []
    for rows, view in zip(ranges, views, strict=True):
        cached, first = memory.records[view.cached], memory.first(view)
        if isinstance(part, Cells):
            kept = _walk(view, cached, first, _cell(model, name, part, h[rows]))
            made.append(model.linear(kept[:, : part.units], name + "cell_o"))
            memory.keep(view, kept, [_last(path, cached, kept) for path, _ in view.ends])
            continue
        name_of, inputs = name + ("scan_" if isinstance(part, SelectiveScan) else "unit_"), h[rows]
        new, old = model.linear(inputs, name_of + "x"), cached[:, part.kept :]
        before = first[part.kept :].view(part.width - 1, -1)
        mixed = taps(model, [name_of + "taps"], part.width, view, new, old, before)
        about = (view, cached[:, : part.kept], first[: part.kept])
        if isinstance(part, SelectiveScan):
            kept, out = _scan(model, name_of, part, F.silu(mixed), *about)
            gate = F.silu(model.linear(inputs, name_of + "z"))
        else:
            out = kept = _walk(*about, _unit(model, name_of, part, mixed))
            gate = F.gelu(model.linear(inputs, name_of + "z"), approximate="tanh")
        made.append(model.linear(out * gate, name_of + "o"))
        ends = [torch.cat([_last(path, about[1], kept),
                           last_inputs(view, path, new, old, before).flatten()])
                for path, _ in view.ends]  # fmt: skip
        memory.keep(view, torch.cat([kept, new], 1), ends)
    return torch.cat(made)


def _walk(view: StateView, cached: Tensor, first: Tensor, step: Step) -> Tensor:
    """Return the states [K, numbers] behind the rows of a span.

    Args:
        cached: states [M, numbers] behind the cached columns.
        first: the state at the start of the first page.
    """
    states, count = [*cached, *[first] * len(view.paths)], len(cached)
    for row in np.argsort([len(path) for path in view.paths], kind="stable").tolist():
        path = view.paths[row]
        before = states[path[-1]] if len(path) else first
        states[count + row] = step(row, before, not len(path) and view.slot < 0)
    return torch.stack(states[count:])


def _last(path: np.ndarray, cached: Tensor, new: Tensor) -> Tensor:
    """Return the state behind the last row of a path."""
    at = int(path[-1])
    return cached[at] if at < len(cached) else new[at - len(cached)]


def _cell(model: Transformer, name: str, part: Cells, h: Tensor) -> Step:
    """Return the step of an LSTM, a GRU or an sLSTM."""
    heads, size, gates = part.heads, part.head_dim, part.gates
    entering = model.linear(h, name + "cell_in").view(-1, gates, heads, size)
    inner = model.w[name + "cell_inner"].view(gates, heads, size, size)
    bias = model.w.get(name + "cell_inner.bias", torch.zeros((), dtype=h.dtype, device=h.device))
    bias = bias.view(gates, heads, size) if part.bias else bias

    def step(row: int, before: Tensor, first: bool) -> Tensor:
        old = before.view(-1, heads, size)
        recurrent = torch.einsum("ghpq,hq->ghp", inner, old[0]) + bias
        if part.cell == "gru":
            r, z = (entering[row, :2] + recurrent[:2]).sigmoid()
            n = (entering[row, 2] + r * recurrent[2]).tanh()
            return (n + z * (old[0] - n)).flatten()
        a, b, c, d = entering[row] + recurrent
        if part.cell == "lstm":
            cell = b.sigmoid() * old[1] + a.sigmoid() * c.tanh()
            return torch.stack([d.sigmoid() * cell.tanh(), cell]).flatten()
        # Before the first row n is 0, and the largest exponent is that of the input gate.
        fall = torch.where(old[2] == 0, -torch.inf, old[3] + F.logsigmoid(b))
        most = torch.maximum(a, fall)
        keep, add = (fall - most).exp(), (a - most).exp()
        cell, norm = keep * old[1] + add * c.tanh(), keep * old[2] + add
        return torch.stack([d.sigmoid() * cell / norm, cell, norm, most]).flatten()

    return step


def _scan(
    model: Transformer, name: str, part: SelectiveScan, u: Tensor, view: StateView, cached: Tensor,
    first: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the states and the outputs of Mamba-1 behind rows with inputs ``u`` [K, C]."""
    sizes = [part.rank, part.state_size, part.state_size]
    t, keys, queries = model.linear(u, name + "inner").split(sizes, 1)
    if part.inner_norm:
        t, keys, queries = (
            model.bare(each) * model.w[f"{name}{which}_norm"]
            for each, which in ((t, "dt"), (keys, "b"), (queries, "c"))
        )
    steps = F.softplus(model.linear(t, name + "dt"))
    decay = model.w[name + "decay"].view(part.channels, -1)

    def step(row: int, before: Tensor, first: bool) -> Tensor:
        kept = (steps[row][:, None] * decay).exp() * before.view(part.channels, -1)
        return (kept + (steps[row] * u[row])[:, None] * keys[row]).flatten()

    states = _walk(view, cached, first, step)
    out = torch.einsum("kcn,kn->kc", states.view(len(u), part.channels, -1), queries)
    return states, out + u * model.w[name + "skip"]


def _unit(model: Transformer, name: str, part: LinearUnit, u: Tensor) -> Step:
    """Return the step of RG-LRU for rows with inputs ``u`` [K, U]."""
    blocks, size = part.blocks, part.block_dim

    def gate(which: str) -> Tensor:
        weight = model.w[name + which].view(blocks, size, size)
        made = torch.einsum("kbp,bpq->kbq", u.view(-1, blocks, size), weight).flatten(1)
        return (made + model.w[f"{name}{which}.bias"]).sigmoid()

    entering, falls = gate("input") * u, gate("rate") * model.w[name + "decay"]

    def step(row: int, before: Tensor, first: bool) -> Tensor:
        if first:
            return entering[row]
        share = torch.sqrt(-torch.expm1(2 * falls[row]))
        return falls[row].exp() * before + share * entering[row]

    return step
