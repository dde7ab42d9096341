"""Parts whose state is small: the record of a row is the state behind it.

A row reads the state of the row before it on its path, or the state at the start of its page, and
leaves its own, so a rejected draft is a dropped record here, too. Parts with a convolution leave
its inputs besides, as ``Recurrence`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from paradecode.core.checks import attributes, checked, flag, one_of, whole
from paradecode.core.errors import InvalidModel

_NORMS = ("before", "after", "both", "none")
CELLS = {"gru": (3, 1), "lstm": (4, 2), "slstm": (4, 4)}
"""Kind of cell -> its number of gates, and how many numbers each unit keeps."""
_MOST = 1 << 18


class RowState:
    """A part whose records are states, of ``kept`` numbers, and inputs of its convolution."""

    width = 0
    slot_numbers = 0
    out_factor = 1.0

    @property
    def kept(self) -> int:
        """The number of float32 numbers of a row's state."""
        raise NotImplementedError

    @property
    def mixed(self) -> int:
        """The number of channels of the convolution, if it has one."""
        return 0

    def record_numbers(self, hidden: int) -> int:
        """Return the number of float32 numbers that a row leaves."""
        return self.kept + self.mixed

    def state_numbers(self, hidden: int) -> int:
        """Return the number of float32 numbers that a page begins with."""
        return self.kept + (self.width - 1) * self.mixed


@dataclass(frozen=True)
class Cells(RowState):
    """Heads of an LSTM, a GRU or an sLSTM, each with a recurrent matrix of its own.

    With i = ``cell_in x`` and s = ``cell_inner h`` of the row before, gate by gate::

        gru    r, z = sigmoid(i + s);  n = tanh(i_n + r s_n);  h' = (1 - z) n + z h
        lstm   i, f, o = sigmoid(i + s);  g = tanh(i_g + s_g);  c' = f c + i g;  h' = o tanh(c')
        slstm  a = m + logsigmoid(f);  m' = max(i, a), or i at the first row;  z = tanh(i_z + s_z)
               c' = e^(a - m') c + e^(i - m') z;  n' = e^(a - m') n + e^(i - m')
               h' = sigmoid(o) c' / n'

    A part adds ``cell_o h'``. The state is h, and then c, n and m where there are. Gates are in the
    order r, z, n (PyTorch's GRU), i, f, g, o (its LSTM) or i, f, z, o (xLSTM). Heads of one unit
    have diagonal recurrent matrices, as ParaRNN's GRU has (arXiv 2510.21450).

    Attributes:
        heads, head_dim: number of heads H, and of units of a head P.
        cell: ``gru``, ``lstm`` or ``slstm`` (arXiv 2405.04517).
        norm: as ``Attention.norm``, with ``cell_norm`` and ``after_cell``.
        bias: whether ``cell_in`` and ``cell_inner`` have biases.
    """

    heads: int = checked(whole(1, 1 << 16))
    head_dim: int = checked(whole(1, 4096))
    cell: str = checked(one_of(*CELLS), "gru")
    norm: str = checked(one_of(*_NORMS), "before")
    bias: bool = checked(flag, False)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if self.units > _MOST:
            fix = f"give at most {_MOST} units, which is {_MOST // self.heads} for each head"
            raise InvalidModel("head_dim", self.head_dim, fix)

    @property
    def units(self) -> int:
        """Number of units of all heads."""
        return self.heads * self.head_dim

    @property
    def gates(self) -> int:
        """Number of gates."""
        return CELLS[self.cell][0]

    @property
    def kept(self) -> int:
        """The number of float32 numbers of a row's state."""
        return CELLS[self.cell][1] * self.units

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, without the norms of the stream.

        ``cell_in`` [gates*H*P, D], the rows of the first gate first; ``cell_inner`` [gates*H*P *
        P], in the same order, the P weights of a unit side by side; ``cell_o`` [D, H*P]; and
        biases.
        """
        rows = self.gates * self.units
        shapes: dict[str, tuple[int, ...]] = {
            "cell_in": (rows, hidden), "cell_inner": (rows * self.head_dim,),
            "cell_o": (hidden, self.units),
        }  # fmt: skip
        if self.bias:
            shapes |= {"cell_in.bias": (rows,), "cell_inner.bias": (rows,)}
        return shapes


@dataclass(frozen=True)
class SelectiveScan(RowState):
    """Channels that each keep N numbers, which decay at a rate of their own (Mamba-1, 2312.00752).

    With u = silu(conv(``scan_x x``)), the row makes a step d = softplus(``scan_dt`` t), keys B and
    queries C from t, B, C = ``scan_inner u``; of each channel::

        h' = e^(d scan_decay) h + d u B;   y = C . h' + scan_skip u

    and the part adds ``scan_o (y * silu(scan_z x))``. The state is h, the N numbers of a channel
    side by side.

    Attributes:
        channels: number of channels.
        state_size: N.
        rank: width of t.
        width: number of taps of the convolution.
        tap_bias: whether the convolution has a bias.
        norm: as ``Attention.norm``, with ``scan_norm`` and ``after_scan``.
        inner_norm: whether t, B and C have an RMSNorm each (Jamba).
    """

    channels: int = checked(whole(1, 1 << 16))
    state_size: int = checked(whole(1, 256))
    rank: int = checked(whole(1, 1 << 14))
    width: int = checked(whole(2, 16), 4)
    tap_bias: bool = checked(flag, False)
    norm: str = checked(one_of(*_NORMS), "before")
    inner_norm: bool = checked(flag, False)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)

    @property
    def mixed(self) -> int:
        """Number of channels of the convolution."""
        return self.channels

    @property
    def kept(self) -> int:
        """The number of float32 numbers of a row's state."""
        return self.channels * self.state_size

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, without the norms of the stream.

        ``scan_x`` and ``scan_z`` [C, D], ``scan_taps`` [C * width] as of a ``Convolution``,
        ``scan_inner`` [rank + 2 N, C], ``scan_dt`` [C, rank] and its bias, ``scan_decay`` [C * N],
        -exp(A_log), ``scan_skip`` [C], ``scan_o`` [D, C]; ``scan_dt_norm`` [rank],
        ``scan_b_norm`` and ``scan_c_norm`` [N].
        """
        channels, n = self.channels, self.state_size
        shapes: dict[str, tuple[int, ...]] = {
            "scan_x": (channels, hidden), "scan_z": (channels, hidden),
            "scan_inner": (self.rank + 2 * n, channels), "scan_dt": (channels, self.rank),
            "scan_o": (hidden, channels), "scan_dt.bias": (channels,),
            "scan_taps": (channels * self.width,), "scan_decay": (channels * n,),
            "scan_skip": (channels,),
        }  # fmt: skip
        if self.tap_bias:
            shapes["scan_taps.bias"] = (channels,)
        if self.inner_norm:
            shapes |= {"scan_dt_norm": (self.rank,), "scan_b_norm": (n,), "scan_c_norm": (n,)}
        return shapes


@dataclass(frozen=True)
class LinearUnit(RowState):
    """The gated linear recurrent units of Griffin and RecurrentGemma (RG-LRU, 2402.19427).

    With u = conv(``unit_x x``) and gates i = sigmoid(``unit_input u``), r = sigmoid(``unit_rate
    u``), which are computed block by block::

        h' = a h + sqrt(1 - a^2) i u,   a = e^(r unit_decay);   h' = i u at the first position

    and the part adds ``unit_o (h' * gelu_tanh(unit_z x))``. The state is h.

    Attributes:
        blocks, block_dim: number of blocks, and of units of a block.
        width: number of taps of the convolution, which has a bias.
        norm: as ``Attention.norm``, with ``unit_norm`` and ``after_unit``.
    """

    blocks: int = checked(whole(1, 4096))
    block_dim: int = checked(whole(1, 4096))
    width: int = checked(whole(2, 16), 4)
    norm: str = checked(one_of(*_NORMS), "before")

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if self.kept > _MOST:
            fix = f"give at most {_MOST} units, which is {_MOST // self.blocks} for each block"
            raise InvalidModel("block_dim", self.block_dim, fix)

    @property
    def mixed(self) -> int:
        """Number of channels of the convolution."""
        return self.blocks * self.block_dim

    @property
    def kept(self) -> int:
        """The number of float32 numbers of a row's state."""
        return self.blocks * self.block_dim

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, without the norms of the stream.

        ``unit_x`` and ``unit_z`` [U, D], ``unit_taps`` [U * width] as of a ``Convolution``,
        ``unit_input`` and ``unit_rate`` [blocks * P * P], of each block the weights [in, out], and
        ``unit_o`` [D, U], all with biases; ``unit_decay`` [U], which is negative.
        """
        units, square = self.kept, self.kept * self.block_dim
        shapes: dict[str, tuple[int, ...]] = {
            "unit_x": (units, hidden), "unit_z": (units, hidden), "unit_o": (hidden, units),
            "unit_taps": (units * self.width,), "unit_input": (square,), "unit_rate": (square,),
        }  # fmt: skip
        for name in list(shapes):
            shapes[f"{name}.bias"] = (hidden if name == "unit_o" else units,)
        return shapes | {"unit_decay": (units,)}


SmallState = Union[Cells, SelectiveScan, LinearUnit]
