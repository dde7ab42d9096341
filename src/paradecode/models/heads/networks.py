"""Build networks from the tensors of a head; every tensor that is used is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.core.network import Array, Network, Op
from paradecode.models.heads.layouts import HeadFile


class HeadTensors:
    """The tensors of a head, by name and shape.

    Attributes:
        unread: names of tensors that were not used yet.
    """

    def __init__(self, file: HeadFile) -> None:
        self._all, self._added = file.tensors, 1.0 if file.gated else 0.0
        self.unread = {name for name in file.tensors if not name.startswith("verifier_")}

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def __call__(self, name: str, *shape: int) -> NDArray[Any]:
        """Return a tensor; -1 in ``shape`` means any size. Raises InvalidModel that names it."""
        if name not in self._all:
            raise InvalidModel(name, None, "the head lacks this tensor: get a complete file")
        found = self._all[name]
        if found.ndim != len(shape) or any(w not in (-1, n) for w, n in zip(shape, found.shape)):
            raise InvalidModel(name, found.shape, f"expected {shape}")
        self.unread.discard(name)
        return found

    def maybe(self, name: str, *shape: int) -> NDArray[Any] | None:
        return self(name, *shape) if name in self._all else None

    def projection(
        self, name: str, rows: int, columns: int
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return a matrix [rows, columns] and its bias or None."""
        return self(f"{name}.weight", rows, columns), self.maybe(f"{name}.bias", rows)

    def gain(self, name: str, width: int) -> NDArray[Any]:
        """Return the gain of a norm; Qwen3-Next stores it minus 1."""
        return self(name, width) + np.float32(self._added)


class NetworkBuilder:
    """Build a network step by step; methods add steps and return the names of their values."""

    def __init__(self, **inputs: int) -> None:
        self.inputs, self.ops, self.tensors = inputs, list[Op](), dict[str, Array]()

    def add(
        self, kind: str, *values: str, tensor: NDArray[Any] | None = None, number: float = 0.0,
        count: int = 0, same: str = "",
    ) -> str:  # fmt: skip
        """Add a step. ``same`` names an earlier step whose tensor is used again."""
        out = f"v{len(self.ops)}"
        if tensor is not None:
            self.tensors[out] = np.ascontiguousarray(tensor, np.float32)
        name = same or (out if tensor is not None else "")
        self.ops.append(Op(out, kind, values, (name,) if name else (), count, number))
        return out

    def linear(self, x: str, weight: NDArray[Any], bias: NDArray[Any] | None = None) -> str:
        """Add x @ weight.T + bias, where ``weight`` is [outputs, inputs]."""
        out = self.add("linear", x, tensor=weight.T)
        return out if bias is None else self.add("shift", out, tensor=bias)

    def norm(self, x: str, gain: NDArray[Any], epsilon: float) -> str:
        unit = self.add("divide", x, self.add("rms", x, number=epsilon))
        return self.add("scale", unit, tensor=gain)

    def norm_each(self, x: str, gains: list[NDArray[Any]], epsilon: float) -> str:
        """Norm equal slices of x separately, and join them side by side."""
        parts, width = len(gains), len(gains[0])
        made = ""
        for number, gain in enumerate(gains):
            inside, gained = np.zeros((2, parts, width), np.float32)
            # The mean is over all slices, of which only this one is not 0.
            inside[number], gained[number] = 1, gain / np.sqrt(np.float32(parts))
            alone = self.add("scale", x, tensor=inside.ravel())
            unit = self.add("divide", alone, self.add("rms", alone, number=epsilon / parts))
            normed = self.add("scale", unit, tensor=gained.ravel())
            made = self.add("add", made, normed) if made else normed
        return made

    def mean(self, x: str, width: int) -> str:
        """Add the mean of each row's numbers, repeated ``width`` times."""
        others = self.add("scale", self.add("centre", x), tensor=-np.ones(width))
        return self.add("add", x, others)

    def tanh(self, x: str, width: int) -> str:
        ones = np.ones(width)
        half = self.add("sigmoid", self.add("scale", x, tensor=2 * ones))
        return self.add("shift", self.add("scale", half, tensor=2 * ones), tensor=-ones)

    def part(self, x: str, begin: int, count: int) -> str:
        """Take ``count`` numbers of each row of x, starting at index ``begin``."""
        return self.add("part", x, number=begin, count=count)

    def same(self, x: str, width: int) -> str:
        """Add a step that changes nothing, because a network's result must be that of a step."""
        return self.add("scale", x, tensor=np.ones(width))

    def network(self) -> Network:
        return Network(self.inputs, tuple(self.ops), self.tensors, dtype="q8")
