"""One sample that the draft model writes in chunks; the target accepts each chunk or writes it
anew."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from paradecode.core.decoder import DRAFT, Fork, Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.noise import Purpose, key
from paradecode.engine.prompt import NOTHING, ROWS
from paradecode.search.conformal import p_value


class ChunkedSample:
    """A decoder of one request; each chunk is drafted on a fork, which its sequence may adopt.

    The draft model draws with noise of its own, so that the target's chunk after a rejection does
    not depend on the rejected one.

    Args:
        chunk: the most tokens of a chunk.
        attempts: chunks that are drafted at a place before the target writes it.
        alpha: chunks whose p-value is at most this are rejected.
        calibrated: ascending scores that chunks are compared with; None ends with the first score.

    Attributes:
        scores: the logarithm of each drafted chunk's perplexity: minus the mean log-probability
            of its tokens in the target.
        accepted: whether each drafted chunk was accepted.
    """

    def __init__(
        self, chunk: int, attempts: int, alpha: float, calibrated: Sequence[float] | None
    ) -> None:
        self._chunk, self._attempts, self._alpha = chunk, attempts, alpha
        self._calibrated = calibrated
        self.scores: list[float] = []
        self.accepted: list[bool] = []

    def __call__(self) -> ChunkedSample:
        return self

    def decode(self, seq: TokenSequence) -> Steps:
        if seq.about(DRAFT).vocabulary is not None:
            fix = "chunks need a draft model with the target's own tokens"
            raise InvalidInput("draft_model", "another vocabulary", fix)
        reply = yield Forward(seq.pending)
        logits = reply.logits
        while not seq.finished:
            unseen = seq.pending_for(DRAFT)[:-1]
            if len(unseen):
                yield Forward(unseen, model=DRAFT)
            for attempt in range(self._attempts):
                forks = yield Fork(1)
                child = forks[0]
                yield from self._draft(child, attempt)
                score, after = yield from self._score(child, logits)
                self.scores.append(score)
                if self._calibrated is None:
                    seq.fill([], NOTHING, [], end="length")
                    return
                self.accepted.append(p_value(score, self._calibrated) > self._alpha)
                if self.accepted[-1]:
                    seq.adopt(child)
                    logits = after
                child.release()
                if self.accepted[-1]:
                    break
            else:
                for _ in range(self._chunk):
                    token = seq.sampler.token(logits, 0)
                    seq.commit(Verdict([token], [0], logits))
                    if seq.finished:
                        return
                    reply = yield Forward(seq.pending)
                    logits = reply.logits

    def _draft(self, child: TokenSequence, attempt: int) -> Steps:
        for _ in range(self._chunk):
            reply = yield Forward(child.pending_for(DRAFT), model=DRAFT, on=child)
            row = child.sampler.processed(reply.logits, 0, ())
            noise = key(child.sampler.noise_key(0, Purpose.DRAFT), attempt)
            token = int(row.sample(child.sampler.warp, [noise])[0])
            child.commit(Verdict([token], [0], reply.logits))
            if child.finished:
                return

    def _score(
        self, child: TokenSequence, before: Logits
    ) -> Generator[Any, Any, tuple[float, Logits]]:
        """The score of the tokens that the target has not read, and the logits behind them.

        Args:
            before: one row of logits, from which the first of these tokens came.
        """
        tokens = child.pending.copy()
        total = float(before.log_probability(tokens[None, :1])[0, 0])
        after = before
        for start in range(0, len(tokens), ROWS):
            part, following = tokens[start : start + ROWS], tokens[start + 1 : start + 1 + ROWS]
            wanted = np.arange(len(part), dtype=np.int32)
            reply = yield Forward(part, logits=wanted, on=child)
            if len(following):
                said = reply.logits.select(range(len(following)))
                total += float(said.log_probability(following[:, None]).sum())
            after = reply.logits.select([len(part) - 1])
        if math.isnan(total):
            raise BackendError("the model returned logits that are NaN")
        return -total / len(tokens), after
