"""Runs small networks on the native core; no model is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.native._core import Network as NativeNetwork
from paradecode.core.network import KINDS, Array, Item, Network

_made: WeakKeyDictionary[Network, NativeNetwork] = WeakKeyDictionary()


def run_networks(network: Network, items: Sequence[Item]) -> list[Array]:
    """Run a network in the core; arguments and result are those of ``Backend.apply``."""
    native = native_network(network)
    for item in items:
        network.check(item)
    if not items:
        return []
    stacked = [_rows([item[name] for item in items], w) for name, w in network.inputs.items()]
    ends = np.cumsum([len(next(iter(item.values()))) for item in items]).tolist()
    return np.split(native.run(stacked, ends), ends[:-1])


def native_network(network: Network) -> NativeNetwork:
    """The network in the core; it is packed once and kept as long as the Python object."""
    if network not in _made:
        _made[network] = _native(network)
    return _made[network]


def _rows(parts: Sequence[NDArray[np.generic]], width: int) -> NDArray[np.generic]:
    return np.ascontiguousarray(np.concatenate(parts), np.float32 if width else np.int64)


def _native(network: Network) -> NativeNetwork:
    values, tensors = [*network.widths], [*network.tensors]
    steps = [
        (
            KINDS.index(step.kind), [values.index(v) for v in step.values],
            [tensors.index(t) for t in step.tensors], step.count, step.number,
        )
        for step in network.steps
    ]  # fmt: skip
    arrays = [np.ascontiguousarray(t, np.float32) for t in network.tensors.values()]
    return NativeNetwork([*network.inputs.values()], steps, arrays, network.dtype)
