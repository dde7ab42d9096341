"""Layers with a state in PyTorch: plain loops over rows, which tests compare every core with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.interface import PAGE, Span, StatePages, WindowPages
from paradecode.models.parts import StatePart
from paradecode.models.recurrence import Recurrence

if TYPE_CHECKING:
    from paradecode.backends.torch.model import Transformer


class StateView:
    """A span's ancestors, records and states as indices, computed once for all layers.

    Columns are the cached rows from the first state's page on, then those of ``tail``, then the
    span's rows.

    Attributes:
        paths: each row's ancestors in order of position, as columns.
        cached: int64 [M], rows of the records of the cached columns.
        kept, targets: rows of the span that leave a record, and the rows of records for them.
        base, slot: the page whose first state is given, and the slot of that state, or -1.
        ends: (columns of the rows before a page from ``base`` on, state slot to store its state).
        pages: number of pages from ``base`` before each row's own.
    """

    def __init__(self, span: Span) -> None:
        nothing = StatePages(WindowPages(0, np.empty(0, np.int32)), 0, -1)
        given, self.paths = span.states or nothing, span.paths()
        self.base, self.slot = given.base, given.state
        held = np.concatenate([np.arange(given.base * PAGE, span.context), span.tail])
        first, pages = given.records
        table = np.append(pages.astype(np.int64), -1)

        def rows(slots: NDArray[np.integer]) -> NDArray[np.int64]:
            index = slots.astype(np.int64) // PAGE - first
            outside = (index < 0) | (index >= len(pages)) | (slots < 0)
            page = table[np.where(outside, -1, index)]
            return np.where(page < 0, -1, page * PAGE + slots % PAGE)

        self.cached = torch.from_numpy(rows(held))
        to = rows(span.slots)
        self.kept = torch.from_numpy(np.flatnonzero(to >= 0))
        self.targets = torch.from_numpy(to[to >= 0])
        self.pages = [int(place) // PAGE - given.base for place in span.positions]
        known, start = span.context - given.base * PAGE, len(held)
        chain = np.concatenate([np.arange(known), start + np.arange(len(span.positions))])
        self.ends = [(chain[: (page - given.base) * PAGE], slot) for page, slot in given.writes]


def convolve(view: StateView, new: Tensor, cached: Tensor, before: Tensor, taps: Tensor) -> Tensor:
    """Return for each row the sum of taps times inputs of its nearest ancestors and itself.

    Args:
        new, cached: inputs [K, C] of the rows and [M, C] of the cached columns.
        before: [w - 1, C], the last inputs before the first state's page.
        taps: [C, w].
    """
    past = taps.shape[1] - 1
    columns = torch.cat([before, cached, new])
    at = np.empty((len(new), past + 1), np.int64)
    for row, path in enumerate(view.paths):
        at[row] = [*[*range(past), *(path + past)][-past:], past + len(cached) + row]
    return torch.einsum("kwc,cw->kc", columns[torch.from_numpy(at).to(new.device)], taps)


def last_inputs(
    view: StateView, path: NDArray[np.int64], new: Tensor, cached: Tensor, before: Tensor
) -> Tensor:
    """Return the inputs [w - 1, C] of the last rows of a path."""
    past = len(before)
    columns = torch.cat([before, cached, new])
    at = torch.from_numpy(np.array([*range(past), *(path + past)], np.int64)[len(path) :])
    return columns[at.to(new.device)]


@dataclass
class Heads:
    """The inputs of the heads of a recurrence, for each row: q and k [K, G, N], v [K, H, P], and
    the rest.

    Attributes:
        falls: log decays [K, H] or [K, G, N].
        strengths: b, [K, H].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    falls: Tensor
    strengths: Tensor


def recur(
    part: Recurrence, view: StateView, rows: Heads, cached: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Run the heads of a recurrence over the rows of a span.

    Args:
        cached: records [M, keys + values + decays] of the cached columns.
        first: the state [H, N, P] at the start of the first page.

    Returns:
        Outputs [K, H, P], records [K, keys + values + decays], and the states that are stored.
    """
    groups, n, heads, p = part.key_heads, part.key_dim, part.heads, part.value_dim
    sizes = [part.keys, part.values, part.decays]
    wide = (groups, n) if part.channels else (heads, 1)
    count = len(cached)
    k, u, c = cached.split(sizes, 1)
    ks, us = list(k.unflatten(1, (groups, n))), list(u.unflatten(1, (heads, p)))
    cs = list(c.unflatten(1, wide))
    empty = torch.empty(0)
    for seen in (ks, us, cs):
        seen += [empty] * len(rows.q)
    starts: dict[tuple[int, int], Tensor] = {}

    def of_head(values: Tensor) -> Tensor:
        """Return [..., H, x] of values [..., G, x] of key heads, or of values [..., H, x]."""
        times = heads // values.shape[-2]
        if part.tiled:
            return values.repeat(*(1,) * (values.ndim - 2), times, 1)
        return values.repeat_interleave(times, -2)

    def start(page: int, path: NDArray[np.int64]) -> Tensor:
        """Return the state behind ``page`` pages of a path."""
        if page == 0:
            return first
        end = int(path[page * PAGE - 1])
        if (page, end) not in starts:
            columns = path[(page - 1) * PAGE : page * PAGE].tolist()
            state, last = start(page - 1, path), cs[end]
            state = of_head(last).exp()[..., None] * state
            for column in columns:
                keys = of_head(ks[column]) * of_head(last - cs[column]).exp()
                state = state + keys[..., None] * us[column][:, None]
            starts[page, end] = state
        return starts[page, end]

    outputs = []
    for row in np.argsort([len(path) for path in view.paths], kind="stable").tolist():
        path, page = view.paths[row], view.pages[row]
        ours = path[page * PAGE :].tolist()
        state = start(page, path)
        fall = rows.falls[row].view(wide)
        total = cs[ours[-1]] + fall if ours else fall
        query, key = of_head(rows.q[row]), of_head(rows.k[row])
        decay = of_head(total).exp()

        def read(by: Tensor, ours: list[int] = ours, state: Tensor = state,
                 total: Tensor = total, decay: Tensor = decay) -> Tensor:  # fmt: skip
            found = torch.einsum("hn,hnp->hp", by * decay, state)
            for column in ours:
                near = (by * of_head(total - cs[column]).exp() * of_head(ks[column])).sum(-1)
                found = found + near[:, None] * us[column]
            return found

        value = rows.v[row] - read(key) if part.rule == "delta" else rows.v[row]
        ks[count + row], us[count + row] = rows.k[row], rows.strengths[row][:, None] * value
        cs[count + row] = total
        own = (query * key).sum(-1)[:, None] * us[count + row]
        outputs.append((row, read(query) + own))
    made = torch.stack([out for _, out in sorted(outputs, key=lambda each: each[0])])
    records = torch.cat([torch.stack(each[count:]).flatten(1) for each in (ks, us, cs)], 1)
    return made, records, [start(len(path) // PAGE, path) for path, _ in view.ends]


def unit(x: Tensor) -> Tensor:
    """Return heads [..., N] of length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class StateMemory:
    """The records and states of one part of one layer.

    Attributes:
        records: [record pages * PAGE, numbers of a record].
        states: [state slots, numbers of a state].
    """

    def __init__(
        self, part: StatePart, hidden: int, records: int, states: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        numbers, self.size = part.record_numbers(hidden), part.state_numbers(hidden)
        self.records = torch.zeros(records * PAGE, numbers, dtype=dtype, device=device)
        self.states = torch.zeros(states, self.size, dtype=dtype, device=device)

    def first(self, view: StateView) -> Tensor:
        """Return the state at the start of a span's first page, flat."""
        return self.states[view.slot] if view.slot >= 0 else self.states.new_zeros(self.size)

    def keep(self, view: StateView, records: Tensor, states: Sequence[Tensor]) -> None:
        """Store the records of a span's rows, and the states that it writes."""
        self.records[view.targets] = records[view.kept]
        for (_, slot), state in zip(view.ends, states, strict=True):
            self.states[slot] = state.flatten()


def run_states(
    model: Transformer, name: str, part: StatePart, h: Tensor, ranges: Sequence[slice],
    views: Sequence[StateView], memory: StateMemory,
) -> Tensor:  # fmt: skip
    """Run a part with a state over the rows of a forward: [N, D] -> [N, D].

    Args:
        name: the layer's prefix of names of weights.
        ranges, views: the rows of each span, and its indices.
    """
    if isinstance(part, Recurrence):
        made = _recurrence(model, name + "state_", part, h, ranges, views, memory)
        return model.linear(made, name + "state_o")
    inner = model.linear(h, name + "conv_b") * model.linear(h, name + "conv_x")
    mixed = []
    for rows, view in zip(ranges, views, strict=True):
        cached, new = memory.records[view.cached], inner[rows]
        before = memory.first(view).view(part.width - 1, -1)
        mixed.append(_taps(model, [name + "conv_taps"], part.width, view, new, cached, before))
        ends = [last_inputs(view, path, new, cached, before) for path, _ in view.ends]
        memory.keep(view, new, ends)
    return model.linear(model.linear(h, name + "conv_c") * torch.cat(mixed), name + "conv_out")


def _taps(
    model: Transformer, names: Sequence[str], width: int, view: StateView, new: Tensor,
    cached: Tensor, before: Tensor,
) -> Tensor:  # fmt: skip
    """Return the convolution of the rows with these taps side by side."""
    taps = torch.cat([model.w[name] for name in names]).view(-1, width)
    made = convolve(view, new, cached, before, taps)
    biases = [model.w[f"{name}.bias"] for name in names if f"{name}.bias" in model.w]
    return made + torch.cat(biases) if biases else made


def _recurrence(
    model: Transformer, name: str, part: Recurrence, h: Tensor, ranges: Sequence[slice],
    views: Sequence[StateView], memory: StateMemory,
) -> Tensor:  # fmt: skip
    """Return what enters ``state_o``, [N, H * P]."""
    made = [model.linear(h, name + each) for each in "qkv"]
    raw = torch.cat([each * factor for each, factor in zip(made, part.factors)], 1)
    steps = None
    if part.decay != "fixed":
        asked = model.linear(h, name + "a_down") if part.decay_rank else h
        steps = model.linear(asked, name + "a") * part.factors[4] + model.w[name + "dt_bias"]
    made = []
    for rows, view in zip(ranges, views, strict=True):
        cached, first, new = memory.records[view.cached], memory.first(view), raw[rows]
        size = part.key_dim * part.values
        records, inputs = cached[:, : cached.shape[1] - part.mixed], cached[:, -part.mixed :]
        before = first[size:].view(part.width - 1, -1) if part.width else first
        mixed = new
        if part.width:
            names = [f"{name}{each}_taps" for each in "qkv"]
            mixed = F.silu(_taps(model, names, part.width, view, new, inputs, before))
        heads = _heads(model, name, part, mixed, h[rows], None if steps is None else steps[rows])
        state = first[:size].view(part.heads, part.key_dim, part.value_dim)
        out, fresh, states = recur(part, view, heads, records, state)
        if part.skip:
            out = out + model.w[name + "skip"][:, None] * heads.v
        if part.width:
            fresh = torch.cat([fresh, new], 1)
            tails = [last_inputs(view, path, new, inputs, before) for path, _ in view.ends]
            states = [torch.cat([s.flatten(), t.flatten()]) for s, t in zip(states, tails)]
        memory.keep(view, fresh, states)
        made.append(out)
    return _gated(model, name, part, torch.cat(made), h)


def _heads(
    model: Transformer, name: str, part: Recurrence, mixed: Tensor, h: Tensor, steps: Tensor | None
) -> Heads:
    """Return the heads of a span's rows from q, k and v side by side, and what gives the decays."""
    q, k, v = mixed.split([part.keys, part.keys, part.values], 1)
    q, k = (each.unflatten(1, (part.key_heads, part.key_dim)) for each in (q, k))
    if part.unit:
        q, k = unit(q), unit(k)
    strengths = torch.ones(len(mixed), part.heads, dtype=h.dtype, device=h.device)
    if steps is None:
        falls = model.w[name + "decay"].expand(len(mixed), -1)
    elif part.decay == "logsigmoid":
        falls = F.logsigmoid(steps) / part.decay_divisor
    else:
        steps = F.softplus(steps).clamp(part.least_step, part.most_step)
        decay = model.w[name + "decay"]
        falls = steps * (decay.repeat_interleave(part.decays // part.heads) if part.channels
                         else decay)  # fmt: skip
        strengths = steps if part.strength == "step" else strengths
    if part.strength == "sigmoid":
        strengths = model.linear(h, name + "b").sigmoid()
    v = v.unflatten(1, (part.heads, part.value_dim))
    return Heads(q * part.scale, k, v, falls, strengths * part.factors[5])


def _gated(model: Transformer, name: str, part: Recurrence, y: Tensor, h: Tensor) -> Tensor:
    """Return the outputs [N, H * P] of heads [N, H, P], with their gate and norm."""
    gate = torch.ones(())
    if part.gate != "none":
        gate = F.silu(model.linear(h, name + "z") * part.factors[3])
    if part.gate == "before":
        y = y * gate.view_as(y)
    if part.out_norm == "head":
        y = model.bare(y, part.out_eps) * model.w[name + "gain"]
    flat = y.flatten(1)
    if part.out_norm == "groups":
        grouped = model.bare(flat.unflatten(1, (part.norm_groups, -1)), part.out_eps)
        flat = grouped.flatten(1) * model.w[name + "gain"]
    return flat * gate if part.gate == "after" else flat
