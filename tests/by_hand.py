"""Plain computations of models in NumPy, one row or one head at a time, without any cache."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from paradecode.core.tree import ROOT, TokenTree

Numbers = dict[str, np.ndarray]


def stored(folder: Path) -> Numbers:
    """Return the tensors of a folder in float64."""
    tensors = load_file(folder / "model.safetensors")
    return {name: values.astype(np.float64) for name, values in tensors.items()}


def normed(x: np.ndarray, gain: np.ndarray | float = 1.0, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * gain


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def turned(x: np.ndarray, place: int) -> np.ndarray:
    """Rotate queries or keys [..., size] for their position.

    The two halves are the real and imaginary parts of complex numbers.
    """
    half = x.shape[-1] // 2
    angles = place * 10000.0 ** -(np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=-1)


def attended(query: np.ndarray, keys: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """Return the attention output [size] of one head; the keys are already rotated."""
    return softmax(np.array(keys) @ query / np.sqrt(len(query))) @ values


def check_paths(tree: TokenTree, logits: Callable[[list[int]], np.ndarray], least: int = 5) -> None:
    """Check that the children of each node are the likeliest tokens after the path to it.

    Args:
        logits: path -> float [V], the logits of a plain computation after the path.
        least: the fewest nodes that must have children.
    """
    looked = 0
    for node in (ROOT, *range(len(tree))):
        children = tree.children(node)
        if children:
            chances = softmax(logits(tree.tokens_to(node)))
            best = np.argsort(-chances)[: len(children)]
            assert tree.tokens[children].tolist() == best.tolist()
            assert np.allclose(tree.estimates[children], chances[best], atol=1e-4)
            looked += 1
    assert looked >= least
