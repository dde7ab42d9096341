"""Weights in the storage type of the checkpoint; quantised blocks stay quantised."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig

__all__ = ["Kind", "Tensor", "Weights", "check_weights"]


@dataclass(frozen=True, eq=False)
class Tensor:
    """One weight.

    Attributes:
        data: for F32, F16: an array of ``shape``; for BF16: uint16 bit patterns of ``shape``; for a
            quantised kind: uint8 [rows, bytes per row] as GGUF defines the blocks.
        shape: logical shape, rows first (a matrix is [outputs, inputs]).
        kind: the storage type.
    """

    data: NDArray[np.generic]
    shape: tuple[int, ...]
    kind: Kind = Kind.F32

    def float32(self) -> NDArray[np.float32]:
        """Return the weight as float32 of ``shape``, dequantised by the gguf package."""
        if self.kind == Kind.F32:
            return np.ascontiguousarray(self.data, np.float32).reshape(self.shape)
        if self.kind == Kind.F16:
            return self.data.astype(np.float32).reshape(self.shape)
        if self.kind == Kind.BF16:
            wide = self.data.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.shape)
        return quants.dequantize(np.ascontiguousarray(self.data), self.kind).reshape(self.shape)

    def looked_up(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows as float32 [n, ...], such as the embeddings of tokens."""
        return Tensor(self.data[rows], (len(rows), *self.shape[1:]), self.kind).float32()

    def release(self) -> None:
        """Release the memory of the file's pages; the system reads them again if needed."""
        base: object = self.data
        while isinstance(base, np.ndarray):
            base = base.base
        base = base.obj if isinstance(base, memoryview) else base
        if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = self.data.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # Neighbours keep pages they share.
        length = (start + self.data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            base.madvise(mmap.MADV_DONTNEED, first, length)

    def rows(self, order: NDArray[np.integer]) -> Tensor:
        """Return the same weight with its rows reordered; exact for every kind."""
        ordered = Tensor(np.ascontiguousarray(self.data[order]), self.shape, self.kind)
        self.release()
        return ordered


Weights = Mapping[str, Tensor]
"""Canonical tensor name (see ``ModelConfig.tensors``) -> weight."""


def check_weights(config: ModelConfig, weights: Weights) -> None:
    """Raise InvalidModel if a tensor of the architecture is missing or has another shape."""
    for name, shape in config.tensors().items():
        if name not in weights:
            raise InvalidModel(name, None, "the checkpoint lacks this tensor; get a complete file")
        if weights[name].shape != shape:
            raise InvalidModel(name, weights[name].shape, f"the configuration implies {shape}")
