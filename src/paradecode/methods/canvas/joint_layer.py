"""ADJUST: one layer that says how final states change when a masked token becomes known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.sequence import ModelFacts
from paradecode.methods.read_once import read_once
from paradecode.methods.tensor_file import checked, load_tensors, save_tensors, size_in

KIND = "joint sampler 1"
FIELD = "layer"
EPSILON = 1e-6
THETA = 10000.0
SIZES = {
    "vocab_size": 1 << 21, "hidden_size": 1 << 14, "width": 1 << 13, "heads": 256, "inner": 1 << 15,
}  # fmt: skip

Array = NDArray[np.float32]


def shapes(facts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each tensor; matrices are used as x @ matrix."""
    d, w, f = facts["hidden_size"], facts["width"], facts["inner"]
    return {
        "table": (facts["vocab_size"], w), "state": (d, w),
        "attn_norm": (w,), "q": (w, w), "k": (w, w), "v": (w, w), "o": (w, w),
        "mlp_norm": (w,), "gate": (w, f), "up": (w, f), "down": (f, w),
        "out_norm": (w,), "out": (w, d),
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class JointLayer:
    """ADJUST (arXiv 2509.22738): embeddings and final states, projected; a Llama layer.

    The paper's layer is as wide as the model and its output is added to the states as it is. Here
    the width W is free, a matrix leads back to the D numbers of a state, states are those before
    the model's last norm (brought to unit scale on the way in, and scaled back on the way out), and
    the projected embeddings are kept as a table [V, W].

    Attributes:
        facts: vocab_size (V), hidden_size (D), width (W), heads and inner size of the layer.
        tensors: see :func:`shapes`.
    """

    facts: Mapping[str, int]
    tensors: Mapping[str, Array]

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        size = self.facts["width"] // self.facts["heads"]
        return THETA ** -(np.arange(0, size, 2) / size)

    def __call__(
        self,
        tokens: NDArray[np.integer],
        states: Array,
        positions: NDArray[np.integer],
        seen: NDArray[np.bool_] | None = None,
    ) -> Array:
        """float32 [n, D]: the states, had the model seen ``tokens``.

        Args:
            tokens: int [n], what the canvas has now at the positions that the states are about.
            states: float32 [n, D], final hidden states before the last norm.
            positions: int [n].
            seen: bool [n, n], which rows each row sees; None is all.
        """
        t, heads = self.tensors, self.facts["heads"]
        scale = np.sqrt(np.square(states).mean(axis=1, keepdims=True) + EPSILON)
        x = t["table"][tokens] + (states / scale) @ t["state"]
        h = _unit(x) * t["attn_norm"]
        q, k, v = ((h @ t[name]).reshape(len(x), heads, -1).swapaxes(0, 1) for name in "qkv")
        angle = np.multiply.outer(positions.astype(np.float64), self._frequencies)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        scores = q @ k.swapaxes(1, 2) * np.float32(q.shape[-1] ** -0.5)
        if seen is not None:
            scores = np.where(seen, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        x = x + (weights @ v).swapaxes(0, 1).reshape(len(x), -1) @ t["o"]
        h = _unit(x) * t["mlp_norm"]
        gate = h @ t["gate"]
        x = x + (gate / (1.0 + np.exp(-np.clip(gate, -40.0, 40.0))) * (h @ t["up"])) @ t["down"]
        return (states + scale * ((_unit(x) * t["out_norm"]) @ t["out"])).astype(np.float32)

    def check(self, model: ModelFacts, path: str) -> None:
        """Raise InvalidInput if it was trained for a model of other sizes."""
        for name in ("vocab_size", "hidden_size"):
            if getattr(model, name) != self.facts[name]:
                fix = f"it is of a model with {name} {self.facts[name]}, not {getattr(model, name)}"
                raise InvalidInput(
                    f"joint-sampler.{FIELD}", path, f"{fix}: train one for this model"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :func:`open_layer` reads."""
        save_tensors(path, KIND, self.facts, self.tensors)


def _unit(x: Array) -> Array:
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + EPSILON)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@read_once(FIELD)
def open_layer(path: str) -> JointLayer:
    """The layer of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or not a joint sampler.
    """
    found, tensors = load_tensors(path, KIND, FIELD)
    facts = {name: size_in(FIELD, path, found, name, most) for name, most in SIZES.items()}
    if facts["width"] % (2 * facts["heads"]):
        raise InvalidInput(FIELD, path, "its width is no multiple of 2 * heads: train it again")
    checked(FIELD, path, tensors, shapes(facts))
    return JointLayer(facts, tensors)
