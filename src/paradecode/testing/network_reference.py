"""Run networks in plain NumPy, as the reference for backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.network import KINDS, Array, Item, Network, Op


def apply_network(network: Network, items: Sequence[Item]) -> list[Array]:
    """Run a network for one item after the other.

    Arguments and result are those of ``Backend.apply``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return [_run(network, item) for item in items]


def _run(network: Network, item: Item) -> Array:
    network.check(item)
    values: dict[str, NDArray[Any]] = dict(item)
    for step in network.steps:
        values[step.out] = _step(step, [values[v] for v in step.values], network)
    return np.asarray(values[network.steps[-1].out], np.float32)


def _step(step: Op, values: list[NDArray[Any]], network: Network) -> Array:
    x, y = values[0], values[-1]
    tensors = [network.tensors[name] for name in step.tensors]
    match step.kind:
        case "linear":
            made = x @ tensors[0]
        case "standardise":
            made = (x - tensors[0]) * tensors[1]
        case "scale":
            made = x * tensors[0]
        case "shift":
            made = x + tensors[0]
        case "lookup":
            made = tensors[0][x]
        case "relu":
            made = np.maximum(x, 0)
        case "silu":
            made = x / (1 + np.exp(-x))
        case "sigmoid":
            made = 1 / (1 + np.exp(-x))
        case "gelu":
            made = 0.5 * x * (1 + np.tanh((x + 0.044715 * x**3) * np.sqrt(2 / np.pi)))
        case "rms":
            made = np.sqrt(np.square(x).mean(axis=1, keepdims=True) + step.number)
        case "centre":
            made = x - x.mean(axis=1, keepdims=True)
        case "add":
            made = x + y
        case "multiply":
            made = x * y
        case "divide":
            made = x / y
        case "join":
            made = np.concatenate(values, axis=1)
        case "part":
            made = x[:, int(step.number) :][:, : step.count]
        case "behind":
            made = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
        case "attention":
            made = _attention(step, *values)
        case _:
            raise InvalidInput("kind of a step", step.kind, f"use one of {', '.join(KINDS)}")
    return np.asarray(made, np.float32)


def _attention(step: Op, q: Array, k: Array, v: Array, positions: Array, groups: Array) -> Array:
    size = q.shape[1] // step.count
    angles = np.multiply.outer(positions, step.number ** -(np.arange(0, size, 2) / size))
    cos, sin = np.cos(angles), np.sin(angles)

    def heads(x: Array) -> Array:
        return x.reshape(len(x), step.count, size).swapaxes(0, 1)

    def rotated(x: Array) -> Array:
        a, b = np.split(heads(x), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    scores = rotated(q) @ rotated(k).swapaxes(1, 2) * size**-0.5
    scores = np.where(groups[None, :] <= groups[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ heads(v)).swapaxes(0, 1).reshape(q.shape)
