"""Test data: a backend with its own page tables, its naive reference, and a tree for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from naive import Naive, random_weights, tiny_config

from paradecode.backends.interface import PAGE, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.models.config import Rope
from spans import span

CONFIGS = {
    "plain": tiny_config(),
    "window": tiny_config(sliding_window=3),
    "everything": tiny_config(
        qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True, tied_head=True,
        rope=Rope(dim=4, scaling="yarn", factor=4.0, original_context=64, attention_factor=1.1),
    ),
    "factors": tiny_config(rope=Rope(dim=8, factors=(1.0, 1.5, 4.0, 8.0))),
}  # fmt: skip


class House:
    """A backend with a fixed page table per sequence, and its naive NumPy reference."""

    def __init__(self, config, name: str = "torch", dtype: str = "fp64", device: str = "cpu"):
        weights = random_weights(config)
        self.config, self.name = config, name
        self.naive = Naive(config, weights)
        if name == "native":
            options = {"dtype": "f32", "kv_dtype": "f32", "threads": 2}
            self.backend: Any = NativeBackend(config, weights, **options)
            self.backend.reserve(64)
        else:
            pytest.importorskip("torch")
            from paradecode.backends.torch.backend import TorchBackend

            self.backend = TorchBackend(config, weights, dtype=dtype, device=device)
            self.backend.reserve(64)
            for cache in (*self.backend.keys, *self.backend.values):
                cache.fill_(777.0)  # A slot that nobody wrote must not be seen.
        self._free = list(np.random.default_rng(0).permutation(64))

    def text(self, length: int, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng([length, seed])
        return rng.integers(0, self.config.vocab_size, length).astype(np.int32)

    def pages(self, slots: int) -> np.ndarray:
        """Return pages that no sequence has, in random order."""
        return np.array([self._free.pop() for _ in range(-(-slots // PAGE))], np.int32)

    def prefill(self, pages: np.ndarray, tokens: np.ndarray) -> None:
        self.backend.forward([causal(pages, tokens, 0, len(tokens))])

    def run(self, *spans: Span) -> list[np.ndarray]:
        return [numbers(result.logits) for result in self.backend.forward(spans)]

    def close(self, got: np.ndarray, expected: np.ndarray) -> None:
        """Assert equality in double precision, or near equality in the core's single precision."""
        most = 1e-10 if self.name == "torch" else 1e-4 * np.abs(expected).max(initial=0)
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


def numbers(logits: Logits) -> np.ndarray:
    return logits.numpy() if hasattr(logits, "numpy") else logits.values


def causal(pages: np.ndarray, text: np.ndarray, start: int, end: int) -> Span:
    """Return a span of rows start .. end - 1, stored after the cached rows, with all logits."""
    return span(pages, text[start:end], start)


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


TREE = TokenTree(ints([3, 4, 3, 9, 9, 1, 7]), ints([-1, -1, 0, 0, 1, 2, 5]))


def paths_of(tree: TokenTree) -> list[list[int]]:
    return [tree.tokens[np.flatnonzero(row)].tolist() for row in tree.visibility]


def physical(pages: np.ndarray, slots: Sequence[int]) -> np.ndarray:
    return np.array([pages[s // PAGE] * PAGE + s % PAGE for s in slots], np.int64)
