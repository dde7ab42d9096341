"""Logits that stay in the native core; only small arrays come out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.native._core import LogitRows, logits_from
from paradecode.core.logits import Bias, Warp


class NativeLogits:
    """The logits protocol over rows in C++. ``select`` and an absent bias copy nothing."""

    __slots__ = ("_rows",)

    def __init__(self, rows: LogitRows) -> None:
        self._rows = rows

    @classmethod
    def from_array(cls, values: NDArray[np.floating]) -> NativeLogits:
        """A copy of an array [R, V] as native logits."""
        return cls(logits_from(np.ascontiguousarray(values, np.float32)))

    @property
    def shape(self) -> tuple[int, int]:
        rows, vocabulary = self._rows.shape
        return rows, vocabulary

    def numpy(self) -> NDArray[np.float32]:
        """float32 [R, V], a copy; for tests and for callers that need every value."""
        return self._rows.numpy()

    def select(self, rows: Sequence[int]) -> NativeLogits:
        return NativeLogits(self._rows.select([int(row) for row in rows]))

    def with_bias(self, biases: Sequence[Bias | None]) -> NativeLogits:
        plain = [
            None
            if bias is None
            else (
                np.ascontiguousarray(bias[0], np.int32),
                np.ascontiguousarray(bias[1], np.float32),
            )
            for bias in biases
        ]
        return NativeLogits(self._rows.with_bias(plain))

    def argmax(self) -> NDArray[np.int32]:
        return self._rows.argmax()

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids, values = self._rows.top_k(k)
        return ids, values

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._rows.gather(np.ascontiguousarray(ids, np.int64))

    def log_normalizer(self) -> NDArray[np.float64]:
        return self._rows.log_normalizer()

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self.gather(ids).astype(np.float64) - self.log_normalizer()[:, None]

    def margin(self) -> NDArray[np.float64]:
        return self._rows.margin()

    def entropy(self) -> NDArray[np.float64]:
        return self._rows.entropy()

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        return self._rows.probabilities(warp.temperature, warp.top_k, warp.top_p, warp.min_p)

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        if warp.temperature == 0.0:
            return self._rows.argmax()
        return self._rows.sample(
            warp.temperature, warp.top_k, warp.top_p, warp.min_p, [int(key) for key in keys]
        )
