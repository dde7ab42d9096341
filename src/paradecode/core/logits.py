"""The interface of logits: arrays as large as the vocabulary stay in the backend.

Decoders get only small arrays, such as the best tokens of a row. A row is the logits at one
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import BackendError
from paradecode.core.noise import GUMBEL_SPREAD, gumbel

Bias = tuple[NDArray[np.int32], NDArray[np.float32]]
"""A sparse addition to one row of logits: token ids, and the values to add (-inf bans a token)."""


@dataclass(frozen=True)
class Warp:
    """The settings that turn logits into the distribution that is sampled, applied in this order.

    First ``temperature`` (0 = greedy) divides the logits. Then the ``top_k`` most probable tokens
    stay (0 = all), then the smallest set with probability mass ``top_p``, then the tokens with at
    least ``min_p`` times the best probability.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class Logits(Protocol):
    """Next-token logits: R rows over a vocabulary of V tokens. Ties go to the lowest token id."""

    @property
    def shape(self) -> tuple[int, int]:
        """The pair (R, V)."""

    def select(self, rows: Sequence[int]) -> Logits:
        """Return the given rows, in that order."""

    def with_bias(self, biases: Sequence[Bias | None]) -> Logits:
        """Return new logits with a sparse addition to each row; this object does not change."""

    def tempered(self, temperature: float) -> Logits:
        """Return new logits, divided by a temperature above 0."""

    def argmax(self) -> NDArray[np.int32]:
        """Return the best token of each row, int32 [R].

        Raises:
            BackendError: if a row has NaN or no finite value.
        """

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the k best tokens of each row, best first: ids and logits, each [R, k].

        The ids are int32, the logits are float32. A ``k`` above V counts as V.
        """

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the logits at ``ids`` [R, m], float32 [R, m]."""

    def log_normalizer(self) -> NDArray[np.float64]:
        """Return the log-sum-exp of each row, float64 [R]."""

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the log-softmax at ``ids`` [R, m], float64 [R, m]."""

    def margin(self) -> NDArray[np.float64]:
        """Return the best token's probability minus the second best's for each row, float64 [R]."""

    def entropy(self) -> NDArray[np.float64]:
        """Return the entropy of each row's softmax in nats, float64 [R]."""

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        """Return the distribution after ``warp``, float64 [R, V].

        The result is as large as the vocabulary; few verifiers need it.
        """

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        """Return int32 [R]: argmax(scaled logit + Gumbel number) over each row's allowed tokens.

        With temperature 0 this is :meth:`argmax`. ``keys`` has one key of random numbers for each
        row, from :func:`noise.key`. The Gumbel number of a token is a function of the key and the
        token id.
        """


class ArrayLogits:
    """Logits in a NumPy array [R, V]: the reference implementation of the protocol, for CPUs."""

    def __init__(self, values: NDArray[np.floating]) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def select(self, rows: Sequence[int]) -> ArrayLogits:
        return ArrayLogits(self.values[list(rows)])

    def with_bias(self, biases: Sequence[Bias | None]) -> ArrayLogits:
        values = self.values.copy()
        for row, bias in zip(values, biases, strict=True):
            if bias is not None:
                row[bias[0]] += bias[1].astype(row.dtype)
        return ArrayLogits(values)

    def tempered(self, temperature: float) -> ArrayLogits:
        return ArrayLogits(self.values / temperature)

    def argmax(self) -> NDArray[np.int32]:
        best = self.values.argmax(axis=1)
        # NumPy's argmax returns the first NaN, so looking at the winners finds every bad row.
        if not np.isfinite(self.values[np.arange(len(best)), best]).all():
            raise BackendError("the model returned logits that are NaN or infinite")
        return best.astype(np.int32)

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        k = min(k, self.shape[1])
        ids = np.empty((self.shape[0], k), np.int32)
        for out, row in zip(ids, self.values, strict=True):
            out[:] = _best(row, k)
        return ids, self.gather(ids)

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._at(ids).astype(np.float32)

    def log_normalizer(self) -> NDArray[np.float64]:
        wide = self.values.astype(np.float64)
        top = wide.max(axis=1)
        return top + np.log(np.exp(wide - top[:, None]).sum(axis=1))

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self._at(ids).astype(np.float64) - self.log_normalizer()[:, None]

    def _at(self, ids: NDArray[np.integer]) -> NDArray[np.floating]:
        return self.values[np.arange(len(self.values))[:, None], ids]

    def margin(self) -> NDArray[np.float64]:
        ids, _ = self.top_k(2)
        p = np.exp(self.log_probability(ids))
        return p[:, 0] - p[:, 1] if p.shape[1] > 1 else p[:, 0]

    def entropy(self) -> NDArray[np.float64]:
        log_p = self.values.astype(np.float64) - self.log_normalizer()[:, None]
        p = np.exp(log_p)
        return -np.where(p > 0, p * np.where(p > 0, log_p, 0.0), 0.0).sum(axis=1)

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        out = np.zeros(self.shape, np.float64)
        for p, row in zip(out, self.values, strict=True):
            ids, scaled = kept(row, warp)
            weights = np.exp(scaled - scaled.max())
            p[ids] = weights / weights.sum()
        return out

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        best = self.argmax()
        if warp.temperature == 0.0:
            return best
        for index, (row, base) in enumerate(zip(self.values, keys, strict=True)):
            ids, scaled = kept(row, warp)
            if not warp.filters:  # Exact: a token this far below the best can never win.
                near = scaled >= scaled.max() - GUMBEL_SPREAD
                ids, scaled = ids[near], scaled[near]
            best[index] = ids[np.argmax(scaled + gumbel(base, ids))]
        return best


def kept(row: NDArray[np.floating], warp: Warp) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the tokens of one row that remain after ``warp``, ascending, and their scaled logits.

    The logits are float64. At temperature 0 only the best token remains.
    """
    if warp.temperature == 0.0:
        best = np.array([row.argmax()], np.int32)
        return best, np.zeros(1)
    scaled = row.astype(np.float64) / warp.temperature
    ids = np.flatnonzero(np.isfinite(scaled)).astype(np.int32)
    scaled = scaled[ids]
    if len(ids) == 0:
        raise BackendError("the model returned logits that are NaN or infinite")
    if 0 < warp.top_k < len(ids):
        chosen = np.sort(_best(scaled, warp.top_k))
        ids, scaled = ids[chosen], scaled[chosen]
    if warp.top_p < 1.0:
        chosen = np.sort(_nucleus(scaled, warp.top_p))
        ids, scaled = ids[chosen], scaled[chosen]
    if warp.min_p > 0.0:
        chosen = scaled >= scaled.max() + np.log(warp.min_p)
        ids, scaled = ids[chosen], scaled[chosen]
    return ids, scaled


def _best(row: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """Return the indices of the k largest values, best first; ties go to the lowest index."""
    if k >= len(row):
        return np.argsort(-row, kind="stable")
    # The k-th value may be tied with values outside the partition: take all that are as large.
    threshold = np.partition(row, len(row) - k)[len(row) - k]
    candidates = np.flatnonzero(row >= threshold)
    if len(candidates) < k:
        raise BackendError("the model returned logits that are NaN")
    return candidates[np.argsort(-row[candidates], kind="stable")][:k]


def _nucleus(scaled: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Return the indices of the smallest set of best tokens with probability mass ``top_p``."""
    top = scaled.max()
    total = np.exp(scaled - top).sum()
    count = min(64, len(scaled))
    while True:  # Sorting the whole vocabulary is seldom needed.
        order = _best(scaled, count)
        mass = np.cumsum(np.exp(scaled[order] - top)) / total
        if count == len(scaled) or mass[-1] >= top_p:
            return order[: int(np.searchsorted(mass, top_p)) + 1]
        count = min(count * 8, len(scaled))
