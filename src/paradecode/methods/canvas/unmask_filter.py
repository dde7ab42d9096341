"""Learn2PD's filter: which proposals of a block are final already; inference in NumPy."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.methods.read_once import read_once
from paradecode.methods.tensor_file import checked, load_tensors, save_tensors, size_in

KIND = "unmask filter 1"
FIELD = "filter"
MOST_BLOCK, MOST_WIDTH = 1 << 10, 1 << 10
DECIDED = 1.0
"""Input for positions that a forward says nothing about: behind the canvas, or not computed."""

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class UnmaskFilter:
    """P(the proposal is what will stand there in the end), from the confidences of a whole block.

    Two linear layers with a ReLU between them (arXiv 2509.25188; which function theirs has between
    its layers is not published).

    Attributes:
        w1, b1: float32 [B, W] (used as x @ w1) and [W].
        w2, b2: float32 [W, B] and [B].
    """

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    @property
    def block(self) -> int:
        """B: positions that it reads and judges together."""
        return len(self.b2)

    def predict(self, confidence: NDArray[np.floating]) -> NDArray[np.float64]:
        """float64 [N, B] probabilities for confidences [N, B]."""
        x = np.maximum(confidence.astype(np.float32) @ self.w1 + self.b1, 0.0)
        logit = (x @ self.w2 + self.b2).astype(np.float64)
        return 1.0 / (1.0 + np.exp(-np.clip(logit, -40.0, 40.0)))

    def judge(
        self, confidence: NDArray[np.floating], offsets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """float64 [K] probabilities for the positions at ``offsets`` [K] of a window.

        A window that is longer than B is judged in pieces of B; what is not given
        counts as decided.
        """
        if not len(offsets):
            return np.empty(0, np.float64)
        pieces = int(offsets.max()) // self.block + 1
        whole = np.full(pieces * self.block, DECIDED)
        whole[offsets] = confidence
        return self.predict(whole.reshape(pieces, self.block)).ravel()[offsets]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :func:`open_filter` reads."""
        facts = {"block": self.block, "width": len(self.b1)}
        tensors = {"w1": self.w1, "b1": self.b1, "w2": self.w2, "b2": self.b2}
        save_tensors(path, KIND, facts, tensors)


@read_once(FIELD)
def open_filter(path: str) -> UnmaskFilter:
    """The filter of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or not a filter.
    """
    facts, tensors = load_tensors(path, KIND, FIELD)
    block = size_in(FIELD, path, facts, "block", MOST_BLOCK)
    width = size_in(FIELD, path, facts, "width", MOST_WIDTH)
    shapes = {"w1": (block, width), "b1": (width,), "w2": (width, block), "b2": (block,)}
    checked(FIELD, path, tensors, shapes)
    return UnmaskFilter(**tensors)
