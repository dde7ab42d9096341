"""Parts of layers that keep a state in place of keys and values.

A row leaves a record, and a page of 16 rows begins with a state, which is a function of the records
before it. A row reads the state at the start of its page and the records of the rows before it in
that page, so a rejected draft is a dropped record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paradecode.core.checks import attributes, checked, flag, listed, number, one_of, whole
from paradecode.core.errors import InvalidInput, InvalidModel

_NORMS = ("before", "after", "both", "none", "shared")


def _six(name: str, value: Any) -> tuple[float, ...]:
    found = listed(number(0, 1e6, above=True), 6)(name, value)
    if len(found) != 6:
        raise InvalidInput(name, value, "give six factors")
    return tuple(found) if tuple(found) != value else value


@dataclass(frozen=True)
class Convolution:
    """A short gated convolution over the row and the rows before it (LFM2).

    A row adds ``out (C * sum_j taps[j] inner[j])`` with ``inner = B * X``, where B, C and X are
    ``conv_b x``, ``conv_c x`` and ``conv_x x``, and j runs over the row and its ``width - 1``
    nearest ancestors. The record is ``inner``; the state is the last ``width - 1`` of them before
    the page, the oldest first.

    Attributes:
        width: number of taps.
        norm: as ``Feed.norm``, with ``conv_norm`` and ``after_conv``.
        bias: whether the projections have biases.
        tap_bias: whether the convolution has one.
        out_factor: as ``Attention.out_factor``.
    """

    width: int = checked(whole(2, 16))
    norm: str = checked(one_of(*_NORMS), "before")
    bias: bool = checked(flag, False)
    tap_bias: bool = checked(flag, False)
    out_factor: float = checked(number(0, 1e6, above=True), 1.0)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)

    slot_numbers = 0

    def record_numbers(self, hidden: int) -> int:
        """Return the number of float32 values that a row leaves."""
        return hidden

    def state_numbers(self, hidden: int) -> int:
        """Return the number of float32 values that a page begins with."""
        return (self.width - 1) * hidden

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, without the norms of the stream.

        ``conv_b``, ``conv_c``, ``conv_x`` and ``conv_out`` [D, D], and biases as ``conv_b.bias``;
        ``conv_taps`` [D * width], the taps of a channel side by side, the newest row's last;
        ``conv_taps.bias`` [D].
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("b", "c", "x", "out"):
            shapes[f"conv_{name}"] = (hidden, hidden)
            if self.bias:
                shapes[f"conv_{name}.bias"] = (hidden,)
        shapes["conv_taps"] = (hidden * self.width,)
        if self.tap_bias:
            shapes["conv_taps.bias"] = (hidden,)
        return shapes


@dataclass(frozen=True)
class Recurrence:
    """Heads with a matrix as their state, which decays and gets an outer product from each row.

    With S [N, P] at the start of the row's page, c the sum of log decays since then, and anc(i) the
    rows before row i in its page::

        u_i = b_i v_i                                                              rule "add"
        u_i = b_i (v_i - e^c_i k_i S - sum_{j in anc(i)} e^(c_i - c_j) (k_i . k_j) u_j)    "delta"
        y_i = e^c_i q_i S + sum_{j in anc(i)} e^(c_i - c_j) (q_i . k_j) u_j + (q_i . k_i) u_i
        S'  = e^c_16 S + sum_j e^(c_16 - c_j) k_j u_j^T                   the next page's state

    Decays of each key channel multiply q (or k) channel by channel before the dot products. Key
    head ``h // (heads / key_heads)`` serves head h. The record is k, u and c of the row, and the
    inputs of its convolution; the state is S and the last ``width - 1`` inputs before the page.

    Attributes:
        heads, key_heads: numbers of heads of values, and of queries and keys.
        key_dim, value_dim: N and P.
        norm: as ``Feed.norm``, with ``state_norm`` and ``after_state``.
        rule: ``add`` or ``delta``.
        decay: ``softplus``: a log decay is ``state_decay * softplus(state_a x + state_dt_bias)``;
            ``logsigmoid``: ``logsigmoid(state_a x + state_dt_bias) / decay_divisor``; ``fixed``:
            ``state_decay``.
        channels: whether each key channel has a decay of its own.
        decay_rank: if not 0, ``state_a`` reads ``state_a_down x`` with this width.
        decay_divisor: see ``decay``.
        strength: b: ``one``; ``step``: the softplus of the decay; ``sigmoid``: of ``state_b x``.
        width: number of taps of a convolution over q, k and v, with a SiLU behind it; 0: none.
        tap_bias: whether the convolution has a bias.
        unit: whether each head of q and k is divided by its length.
        tiled: whether key head ``h % key_heads`` serves head h, in place of
            ``h // (heads / key_heads)`` (Qwen3.5 in GGUF files).
        scale: factor of q.
        skip: whether ``state_skip`` [H] times v is added to y.
        gate: ``none``; ``before``: y is multiplied by ``silu(state_z x)`` before its norm;
            ``after``: behind it.
        out_norm: ``none``; ``head``: each head of y has an RMSNorm with one gain for all;
            ``groups``: each of ``norm_groups`` groups of channels has one, with gains of its own.
        least_step, most_step: bounds of the softplus.
        bias: whether q, k, v, z and a have biases; ``output_bias``: whether o has one.
        factors: by which ``state_q x``, ``state_k x``, ``state_v x``, ``state_z x`` and ``state_a
            x`` are multiplied (Falcon-H1), and b.
        out_eps: epsilon of ``out_norm``; 0 means the model's.
        out_factor: as ``Attention.out_factor``.
    """

    heads: int = checked(whole(1, 1024))
    key_heads: int = checked(whole(1, 1024))
    key_dim: int = checked(whole(1, 1024))
    value_dim: int = checked(whole(1, 1024))
    norm: str = checked(one_of(*_NORMS), "before")
    rule: str = checked(one_of("add", "delta"), "add")
    decay: str = checked(one_of("softplus", "logsigmoid", "fixed"), "softplus")
    channels: bool = checked(flag, False)
    decay_rank: int = checked(whole(0, 1 << 16), 0)
    decay_divisor: float = checked(number(0, 1e6, above=True), 1.0)
    strength: str = checked(one_of("one", "step", "sigmoid"), "step")
    width: int = checked(whole(0, 16), 0)
    tap_bias: bool = checked(flag, False)
    unit: bool = checked(flag, False)
    tiled: bool = checked(flag, False)
    scale: float = checked(number(0, 1e6, above=True), 1.0)
    skip: bool = checked(flag, False)
    gate: str = checked(one_of("none", "before", "after"), "none")
    out_norm: str = checked(one_of("none", "head", "groups"), "none")
    norm_groups: int = checked(whole(1, 1024), 1)
    least_step: float = checked(number(0, 1e6), 0.0)
    most_step: float = checked(number(0, 1e30, above=True), 1e30)
    bias: bool = checked(flag, False)
    output_bias: bool = checked(flag, False)
    factors: tuple[float, ...] = checked(_six, (1.0,) * 6)
    out_factor: float = checked(number(0, 1e6, above=True), 1.0)
    out_eps: float = checked(number(0, 0.999), 0.0)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if self.heads % self.key_heads:
            raise InvalidModel("key_heads", self.key_heads, f"it must divide heads ({self.heads})")
        if (self.heads * self.value_dim) % self.norm_groups:
            fix = f"it must divide the {self.heads * self.value_dim} channels"
            raise InvalidModel("norm_groups", self.norm_groups, fix)
        if self.width == 1:
            raise InvalidModel("width", 1, "give 0 for no convolution, or 2 to 16")
        if self.least_step > self.most_step:
            raise InvalidModel("least_step", self.least_step, f"at most {self.most_step}")
        if self.strength == "step" and (self.decay != "softplus" or self.channels):
            raise InvalidModel("strength", "step", "it needs a softplus for each head")

    slot_numbers = 0

    @property
    def keys(self) -> int:
        """Number of channels of q, and of k."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Number of channels of v."""
        return self.heads * self.value_dim

    @property
    def decays(self) -> int:
        """Number of log decays of a row."""
        return self.keys if self.channels else self.heads

    @property
    def mixed(self) -> int:
        """Number of channels of the convolution: those of q, then k, then v; 0 if there is none."""
        return 2 * self.keys + self.values if self.width else 0

    def record_numbers(self, hidden: int) -> int:
        """Return the number of float32 values that a row leaves."""
        return self.keys + self.values + self.decays + self.mixed

    def state_numbers(self, hidden: int) -> int:
        """Return the number of float32 values that a page begins with."""
        return self.key_dim * self.values + (self.width - 1) * self.mixed

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, without the norms of the stream.

        ``state_q`` and ``state_k`` [G*N, D], ``state_v`` and ``state_z`` [H*P, D], ``state_a`` [H
        or G*N, D or rank], ``state_a_down`` [rank, D], ``state_b`` [H, D], ``state_o`` [D, H*P];
        ``state_dt_bias`` [H or G*N]; ``state_decay`` [H], -exp(A_log); ``state_skip`` [H];
        ``state_q_taps`` and ``state_k_taps`` [G*N * width] and ``state_v_taps`` [H*P * width], the
        taps of a channel side by side, the newest row's last, with biases; ``state_gain`` [P] or
        [H*P].
        """
        keys, values = self.keys, self.values
        shapes: dict[str, tuple[int, ...]] = {"q": (keys, hidden), "k": (keys, hidden)}
        shapes["v"] = (values, hidden)
        if self.gate != "none":
            shapes["z"] = (values, hidden)
        if self.decay != "fixed":
            if self.decay_rank:
                shapes["a_down"] = (self.decay_rank, hidden)
            shapes["a"] = (self.decays, self.decay_rank or hidden)
        if self.strength == "sigmoid":
            shapes["b"] = (self.heads, hidden)
        if self.bias:
            biased = [name for name in ("q", "k", "v", "z") if name in shapes]
            shapes |= {f"{name}.bias": shapes[name][:1] for name in biased}
        shapes["o"] = (hidden, values)
        if self.output_bias:
            shapes["o.bias"] = (hidden,)
        if self.decay != "fixed":
            shapes["dt_bias"] = (self.decays,)
        if self.decay != "logsigmoid":
            shapes["decay"] = (self.heads,)
        for name in ("q", "k", "v") if self.width else ():
            shapes[f"{name}_taps"] = (shapes[name][0] * self.width,)
            if self.tap_bias:
                shapes[f"{name}_taps.bias"] = shapes[name][:1]
        if self.skip:
            shapes["skip"] = (self.heads,)
        if self.out_norm != "none":
            shapes["gain"] = (self.value_dim if self.out_norm == "head" else values,)
        return {f"state_{name}": shape for name, shape in shapes.items()}
