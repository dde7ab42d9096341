"""Answers the logits protocol from a recording."""

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
    """Notes how a method has used the replies so far.

    Attributes:
        verifying: whether a verifier reads the replies now; it only follows recorded tokens.
        exact: whether the recording holds everything that was read.
        top_k_rows, sample_rows: numbers of rows for which top-k and sampling, whose cost grows with
            the vocabulary, were called.
    """

    verifying: bool = False
    exact: bool = True
    top_k_rows: int = 0
    sample_rows: int = 0


class RecordedRows:
    """All recorded distributions in one table, with a search for similar rows.

    Attributes:
        tokens: int32 [G], the token that follows each row.
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
        """Return a recorded row after the same last tokens, to replace a row that was not recorded.

        Rows after the same two tokens are preferred, then rows after the same last token. Among
        them the latest row up to ``now`` is returned, or else the first from ``end`` on, where the
        next request begins. Rows between are the future of this request, which no method may see.
        Without any such row the result is ``now``, the row after the accepted text.
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
    """The logits of a reply, which are rows of the recorded table.

    A verifier gets the recorded token itself. A row that follows only recorded tokens is exact in
    its k best tokens. Any other row is replaced by a similar one (:meth:`RecordedRows.like`).
    Reading such a row, or more than k tokens of a row, marks the outcome as not exact.

    Args:
        table: the table of all recorded rows.
        rows: int64 [R], indices into the table.
        known: bool [R], whether each row was recorded at this place, and is not replaced by a
            similar one.
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
        # These are a sampler's logit processors; the recorded token was chosen after them.
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
        """Return the logit of each id.

        An id outside the k best tokens gets the least of their logits.
        """
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
        """Return the entropy of each row, in nats.

        The recording holds the k best tokens; the rest of the probability is spread evenly over all
        other tokens.
        """
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
        # The recorded tokens were drawn with the noise of the same positions.
        drawn = self._table.tokens[self._rows]
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
