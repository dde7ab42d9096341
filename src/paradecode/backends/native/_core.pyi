"""The C++ core (csrc/binding.cpp)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Span
from paradecode.core.layers import Layers
from paradecode.core.logits import Bias

T = TypeVar("T")

INTERFACE: int
"""Raised whenever anything here changes, in csrc/binding.cpp and in this package."""

def available_isas() -> list[str]:
    """Instruction sets that can run here, best first."""

def chosen_isa() -> tuple[str, str]:
    """The instruction set that a new model would use, and why."""

def read_bandwidth(bytes: int, threads: int) -> float:
    """Bytes a second at which this machine reads a buffer of that size."""

def float_peak(threads: int) -> float:
    """Fused multiply-adds of float32 a second that this many threads make."""

def dot_peak(threads: int) -> float:
    """Products of two bytes a second that this machine makes out of registers."""

def in_own_state(call: Callable[[], T]) -> T:
    """What ``call`` returns, computed with the rounding that the core has, not the host's."""

def logits_from(values: NDArray[np.float32]) -> LogitRows: ...

class LogitRows:
    @property
    def shape(self) -> tuple[int, int]: ...
    def select(self, rows: Sequence[int]) -> LogitRows: ...
    def with_bias(self, biases: Sequence[Bias | None]) -> LogitRows: ...
    def tempered(self, temperature: float) -> LogitRows: ...
    def argmax(self) -> NDArray[np.int32]: ...
    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    def gather(self, ids: NDArray[np.int64]) -> NDArray[np.float32]: ...
    def log_normalizer(self) -> NDArray[np.float64]: ...
    def entropy(self) -> NDArray[np.float64]: ...
    def margin(self) -> NDArray[np.float64]: ...
    def sample(
        self, temperature: float, top_k: int, top_p: float, min_p: float, keys: Sequence[int]
    ) -> NDArray[np.int32]: ...
    def probabilities(
        self, temperature: float, top_k: int, top_p: float, min_p: float
    ) -> NDArray[np.float64]: ...
    def numpy(self) -> NDArray[np.float32]: ...

class NgramTable:
    def __init__(self, keys: NDArray[np.uint32], values: NDArray[np.uint32]) -> None: ...

class Experience:
    def __init__(self) -> None: ...

class CostCurve:
    def __init__(
        self, rows: Sequence[float], contexts: Sequence[float], seconds: Sequence[Sequence[float]]
    ) -> None: ...

class StepSequence:
    def __init__(
        self,
        lookup: tuple[int, int, int, int, NgramTable | None] | None,
        stops: NDArray[np.int32],
        warp: tuple[float, int, float, float],
        seed: int,
        scored: bool,
    ) -> None: ...
    def enter(
        self,
        text: NDArray[np.int32],
        room: int,
        steps: int,
        rows: int,
        hidden: Sequence[int],
        state: tuple[Any, ...] | None,
        experience: Experience | None,
    ) -> None: ...
    def hold(
        self,
        pages: NDArray[np.int32],
        windows: Mapping[int, tuple[int, NDArray[np.int32]]] = ...,
        states: tuple[Any, ...] | None = ...,
        own_states: Sequence[int] = ...,
    ) -> None: ...
    @property
    def state(self) -> tuple[int, int]: ...
    def learned(
        self,
    ) -> tuple[list[list[float]], list[list[float]], list[float], list[int]] | None: ...

class Model:
    def __init__(
        self, shape: dict[str, Any], *, half_cache: bool, threads: int, apart: bool
    ) -> None:
        """``shape``: see :func:`paradecode.backends.native.shape.shape_record`."""
    def set_format(self, tensor: str, format: int) -> None: ...
    def fill(self, tensor: str, first_row: int, source: int, rows: NDArray[np.uint8]) -> None: ...
    def set_vector(self, tensor: str, values: NDArray[np.float32]) -> None: ...
    def finish_loading(self, tied_head: bool) -> None: ...
    def reserve(self, pages: int) -> None: ...
    def reserve_states(self, records: int, states: int) -> None: ...
    def forward(
        self,
        spans: Sequence[Span],
        layers: Layers | None,
        only_best: bool = False,
        canvases: dict[int, LogitRows | None] = {},
    ) -> list[tuple[LogitRows, dict[int, NDArray[np.float32]], dict[int, NDArray[np.float32]]]]: ...
    def steps(
        self,
        sequences: Sequence[StepSequence],
        *,
        curve: CostCurve | None,
        overhead: tuple[float, float, float],
        before: tuple[int, int],
        spare: Sequence[int],
        groups: Sequence[int],
        limit: float,
    ) -> list[
        list[
            tuple[
                NDArray[np.int32] | None,
                NDArray[np.float32] | None,
                list[int],
                list[float],
                float,
                float,
                NDArray[np.float32] | None,
            ]
        ]
    ]: ...
    def copy(self, source: NDArray[np.int64], target: NDArray[np.int64], window: int = -1) -> None:
        """Copy rows in the layers with a window; -1: in all."""
    @property
    def threads(self) -> int: ...
    def work_of(self, tensor: str) -> tuple[int, int]:
        """Bytes of a matrix, and the products of bytes that a row makes (0 for floats)."""
    def profile(self, on: bool) -> dict[str, float]:
        """Seconds by part of the forwards since the last call; whether to go on."""
    def traffic(self, on: bool) -> list[tuple[int, int, int, int]]:
        """Rows, context, bytes, experts of each forward since the last call; whether to go on."""
    @property
    def slot_bytes(self) -> list[tuple[int, int]]:
        """Of each window, the bytes of a token's keys and values in its layers."""
    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values that the system has given so far."""
    @property
    def isa(self) -> tuple[str, str]: ...

class Network:
    def __init__(
        self,
        widths: list[int],
        steps: list[tuple[int, list[int], list[int], int, float]],
        tensors: list[NDArray[np.float32]],
        dtype: str = "f32",
    ) -> None: ...
    def run(self, inputs: list[NDArray[Any]], ends: list[int]) -> NDArray[np.float32]: ...

class HeadMemory:
    @property
    def bytes(self) -> int: ...

class DraftHead:
    def __init__(
        self,
        *,
        width: int,
        enter: Network,
        blocks: Sequence[tuple[Any, ...]],
        outs: Sequence[Network],
        back: Network | None,
        to_target: list[int],
        mask: list[float],
        mask_token: int,
        threads: int,
    ) -> None: ...
    def memory(self) -> HeadMemory:
        """For the keys and values of one request."""
    def draft(
        self, drafts: Sequence[tuple[Any, ...]]
    ) -> tuple[list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]], int]: ...
    @property
    def bytes(self) -> tuple[int, int]:
        """Of the matrices that a level reads, and of those that committed rows enter by."""
