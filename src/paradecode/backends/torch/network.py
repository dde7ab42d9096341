"""Run small networks with PyTorch; training computes gradients through the same operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paradecode.core.errors import InvalidInput
from paradecode.core.network import KINDS, Array, Item, Network, Op


class TorchNetworks:
    """Run small networks on a device, which keeps their float32 tensors while the networks live.

    Inputs are moved to the device, and results come back as float32 NumPy arrays.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: WeakKeyDictionary[Network, dict[str, Tensor]] = WeakKeyDictionary()

    @torch.inference_mode()
    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        """Run a network in PyTorch; arguments and result are those of ``Backend.apply``."""
        if network not in self._tensors:
            self._tensors[network] = {
                name: self._here(tensor, np.float32) for name, tensor in network.tensors.items()
            }
        outputs = []
        for item in items:
            network.check(item)
            inputs = {
                name: self._here(item[name], np.float32 if width else np.int64)
                for name, width in network.inputs.items()
            }
            outputs.append(compute(network.steps, inputs, self._tensors[network]))
        return [made.cpu().numpy() for made in outputs]

    def _here(self, values: NDArray[Any], dtype: type[np.generic]) -> Tensor:
        # PyTorch warns of read-only memory, such as that of a mapped file.
        return torch.from_numpy(np.require(values, dtype, ["C", "W"])).to(self.device)

    def close(self) -> None:
        """Free the tensors."""
        self._tensors.clear()


def compute(
    steps: Sequence[Op],
    inputs: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    after: Callable[[Op, Tensor], Tensor] = lambda step, value: value,
) -> Tensor:
    """Run the steps of a network, and return the value of the last step.

    Args:
        inputs: [..., n, width], or whole numbers [..., n]; rows of one item along n.
        tensors: float32, by the names that steps use; they may require gradients.
        after: changes the value of a step (dropout, while training).
    """
    values = dict(inputs)
    for step in steps:
        read = [values[v] for v in step.values]
        value = _step(step, read, [tensors[t] for t in step.tensors])
        values[step.out] = after(step, value)
    return values[steps[-1].out]


def _step(step: Op, values: list[Tensor], tensors: list[Tensor]) -> Tensor:
    x, y = values[0], values[-1]
    match step.kind:
        case "linear":
            return x @ tensors[0]
        case "standardise":
            return (x - tensors[0]) * tensors[1]
        case "scale":
            return x * tensors[0]
        case "shift":
            return x + tensors[0]
        case "lookup":
            return functional.embedding(x, tensors[0])
        case "relu":
            return x.relu()
        case "silu":
            return functional.silu(x)
        case "sigmoid":
            return x.sigmoid()
        case "gelu":
            return functional.gelu(x, approximate="tanh")
        case "rms":
            return (x.square().mean(-1, keepdim=True) + step.number).sqrt()
        case "centre":
            return x - x.mean(-1, keepdim=True)
        case "add":
            return x + y
        case "multiply":
            return x * y
        case "divide":
            return x / y
        case "join":
            return torch.cat(values, -1)
        case "part":
            return x[..., int(step.number) :][..., : step.count]
        case "behind":
            return torch.cat([torch.zeros_like(x[..., :1, :]), x[..., :-1, :]], -2)
        case "attention":
            return _attention(step, *values)
    raise InvalidInput("kind of a step", step.kind, f"use one of {', '.join(KINDS)}")


def _attention(
    step: Op, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, groups: Tensor
) -> Tensor:
    size = q.shape[-1] // step.count
    half = torch.arange(0, size, 2, dtype=torch.float64, device=q.device)
    angles = positions.double()[..., None] * step.number ** -(half / size)
    cos, sin = angles.cos().float()[..., None, :, :], angles.sin().float()[..., None, :, :]

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (step.count, size)).transpose(-3, -2)

    def rotated(x: Tensor) -> Tensor:
        a, b = heads(x).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    scores = rotated(q) @ rotated(k).mT * size**-0.5
    unseen = groups[..., None, :] > groups[..., :, None]
    weights = scores.masked_fill(unseen[..., None, :, :], -torch.inf).softmax(-1)
    return (weights @ heads(v)).transpose(-3, -2).flatten(-2)
