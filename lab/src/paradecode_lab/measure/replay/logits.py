"""The logits protocol, answered from a recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import BackendError
from paradecode.core.logits import Bias, Warp
from paradecode.core.noise import gumbel
from paradecode_lab.measure.replay.recording import Recording


@dataclass
class Reading:
    """How a method has used the replies so far.

    Attributes:
        verifying: whether a verifier reads now; it follows the recorded tokens only.
        exact: whether everything that was read is in the recording.
        top_k_rows, sample_rows: numbers of rows of these vocabulary-sized operations.
    """

    verifying: bool = False
    exact: bool = True
    top_k_rows: int = 0
    sample_rows: int = 0


class RecordedRows:
    """Every recorded distribution, in one table, and a way to find one like it.

    Attributes:
        tokens: int32 [G], the token behind each row.
        top_ids, top_logits, normalizer: [G, k], [G, k], [G], see :class:`Request`.
        starts: the first row of each request, and the number of all rows.
    """

    def __init__(self, recording: Recording) -> None:
        requests = recording.requests
        self.vocab_size = recording.model.vocab_size
        self.tokens = np.concatenate([request.text[1:] for request in requests])
        self.top_ids = np.concatenate([r.top_ids for r in requests])
        self.top_logits = np.concatenate([r.top_logits for r in requests])
        self.normalizer = np.concatenate([r.log_normalizer for r in requests])
        sizes = [len(request.top_ids) for request in requests]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._after: dict[tuple[int, ...], list[int]] = {}
        for start, request in zip(self.starts, requests):
            text = request.text.tolist()
            for row, pair in enumerate(zip([-1, *text], text[:-1]), start):
                self._after.setdefault(pair, []).append(row)
                self._after.setdefault(pair[1:], []).append(row)

    def like(self, before: int, last: int, now: int, end: int) -> int:
        """A recorded row behind the same last tokens, in place of a row that was not recorded.

        It follows the same pair of tokens, or else the same token. Of such rows it is the latest
        one up to row ``now``, or else the first from row ``end`` on, where the next request begins:
        the rest of this request is the future, which no method may see. If there is none, it is
        ``now``, the row behind the accepted text.
        """
        for key in ((before, last), (last,)):
            rows = self._after.get(key, [])
            place = bisect_right(rows, now)
            if place:
                return rows[place - 1]
            place = bisect_left(rows, end)
            if place < len(rows):
                return rows[place]
        return now


class RecordedLogits:
    """The rows of a reply.

    A verifier reads the recorded token itself. A row that follows recorded tokens is exact in its k
    best tokens. Any other row is a similar one (:meth:`RecordedRows.like`). Reading such a row, or
    more than k tokens of a row, marks the outcome as not exact.

    Args:
        table: the table of all recorded rows.
        rows: int64 [R], places in the table.
        known: bool [R], whether each row is the target's own, and not a similar one.
    """

    def __init__(
        self,
        table: RecordedRows,
        rows: NDArray[np.int64],
        known: NDArray[np.bool_],
        reading: Reading,
        biased: bool = False,
    ) -> None:
        self._table, self._rows, self._known = table, rows, known
        self._reading, self._biased = reading, biased

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._table.vocab_size

    def select(self, rows: Sequence[int]) -> RecordedLogits:
        chosen = list(rows)
        return RecordedLogits(
            self._table, self._rows[chosen], self._known[chosen], self._reading, self._biased
        )

    def with_bias(self, biases: Sequence[Bias | None]) -> RecordedLogits:
        # A sampler's processors: the recorded token has gone through them.
        return RecordedLogits(self._table, self._rows, self._known, self._reading, True)

    def tempered(self, temperature: float) -> RecordedLogits:
        raise BackendError("a recording has one temperature; this method needs others")

    def argmax(self) -> NDArray[np.int32]:
        best = self._table.top_ids[self._rows, 0]
        if not self._reading.verifying:
            self._note(True)
            return best
        return np.where(self._known, self._table.tokens[self._rows], best)

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        kept = self._table.top_ids.shape[1]
        self._note(min(k, self._table.vocab_size) <= kept)
        self._reading.top_k_rows += len(self._rows)
        return self._table.top_ids[self._rows, :k], self._table.top_logits[self._rows, :k]

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """The logit of each id. An id that is not among the k best gets the least of theirs."""
        same = self._table.top_ids[self._rows][:, None, :] == np.asarray(ids)[:, :, None]
        self._note(bool(same.any(axis=2).all()))
        logits = self._table.top_logits[self._rows]
        found = np.take_along_axis(logits, same.argmax(axis=2), axis=1)
        return np.where(same.any(axis=2), found, logits[:, -1:])

    def log_normalizer(self) -> NDArray[np.float64]:
        self._note(True)
        return self._table.normalizer[self._rows]

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self.gather(ids).astype(np.float64) - self.log_normalizer()[:, None]

    def margin(self) -> NDArray[np.float64]:
        ids, _ = self.top_k(2)
        p = np.exp(self.log_probability(ids))
        return p[:, 0] - p[:, 1] if p.shape[1] > 1 else p[:, 0]

    def entropy(self) -> NDArray[np.float64]:
        """Entropy of each row. The recording holds the k best tokens; the rest of the probability
        is spread evenly over all others."""
        self._note(False)
        log_p = self._table.top_logits[self._rows] - self._table.normalizer[self._rows][:, None]
        p = np.exp(log_p)
        left = np.maximum(1.0 - p.sum(axis=1), 1e-12)
        others = max(self.shape[1] - p.shape[1], 1)
        return -(p * log_p).sum(axis=1) - left * np.log(left / others)

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        raise BackendError(
            "a recording holds the best few of each distribution only; this method needs all"
        )

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        if warp.temperature == 0.0 and not self._biased:
            return self.argmax()
        self._note(True)
        self._reading.sample_rows += len(self._rows)
        drawn = self._table.tokens[self._rows]  # Drawn with the noise of these very positions.
        for row in np.flatnonzero(~self._known).tolist():
            ids = self._table.top_ids[self._rows[row]]
            scores = self._table.top_logits[self._rows[row]].astype(np.float64)
            if warp.temperature > 0.0:
                scores = scores / warp.temperature + gumbel(keys[row], ids)
            drawn[row] = ids[np.argmax(scores)]
        return drawn

    def _note(self, held: bool) -> None:
        if not self._reading.verifying and not (held and self._known.all()):
            self._reading.exact = False
