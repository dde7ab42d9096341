"""ATTS: sample outputs of a draft model, of which the target rejects a calibrated share."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import numpy as np

from paradecode.core.decoder import DRAFT, Fork, Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.noise import Purpose, key
from paradecode.engine.prompt import ROWS, OneUse
from paradecode.methods.parts import declare, local_path, parameter
from paradecode.methods.trained import TrainedPart
from paradecode.search.branch import Branch, Grow, Rate, Search, Searched, SearchTask, Start
from paradecode.search.strategies.sampled import final_answer


def p_value(score: float, calibrated: Sequence[float]) -> float:
    """Return the conformal p-value: the share of scores, its own included, of at least ``score``.

    If the score and the m calibrated scores are exchangeable, the p-value is at most a with a
    probability of at most a. If no two scores are equal, this probability is floor(a (m + 1)) / (m
    + 1) (Vovk et al. 2005).

    Args:
        calibrated: m scores in ascending order.
    """
    above = len(calibrated) - bisect_left(calibrated, score)
    return (1 + above) / (1 + len(calibrated))


# Scores of chunks that were drafted for other questions, with which `atts` compares its chunks.


class ChunkScores(TrainedPart):
    """Calibrated scores: one for each question, the score of its first chunk of ``chunk`` tokens.

    Each question has one score, because chunks of the same question resemble each other. Many
    scores of few questions would give wrong p-values.
    """

    kind = "chunk scores 1"
    field = "scores"
    sizes: ClassVar = {"chunk": 4096, "count": 1 << 20}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scores": (self.facts["count"],)}


# A sample that the draft model writes in chunks. The target accepts a chunk, or writes it itself.


class ChunkedSample(OneUse):
    """A decoder of one request. Each chunk is drafted on a fork, which its sequence may adopt.

    The draft model samples with random numbers of its own. So the target's chunk after a rejection
    does not depend on the rejected chunk.

    Args:
        chunk: the most tokens of a chunk.
        attempts: number of chunks that are drafted at a position before the target writes the
            chunk.
        alpha: a chunk is rejected if its p-value is at most this.
        calibrated: scores in ascending order, with which chunks are compared. With None, the
            decoder ends after the first score.

    Attributes:
        scores: logarithm of each drafted chunk's perplexity, which is minus the mean
            log-probability of its tokens under the target.
        accepted: True or False for each drafted chunk.
    """

    def __init__(
        self, chunk: int, attempts: int, alpha: float, calibrated: Sequence[float] | None
    ) -> None:
        self._chunk, self._attempts, self._alpha = chunk, attempts, alpha
        self._calibrated = calibrated
        self.scores: list[float] = []
        self.accepted: list[bool] = []

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
                    self.end(seq)
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
        """Return the score of the tokens that the target has not read, and the logits after them.

        Args:
            before: one row of logits, which predicts the first of these tokens.
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


@declare(
    "search", "atts", paper="ATTS: Asynchronous Test-Time Scaling via Conformal Prediction",
    arxiv="2509.15148", guarantee="lossy",
)  # fmt: skip
class AsynchronousScaling:
    """Samples ``n`` outputs that the draft model writes chunk by chunk, each at its own pace.

    The target reads each chunk in one forward pass. The score of a chunk is the logarithm of its
    perplexity under the target. Its p-value is the conformal p-value among ``calibration`` first
    chunks, which are drafted for this prompt beforehand, or among ``scores`` of other questions. A
    chunk with a p-value of at most ``alpha`` is rejected. After ``attempts`` rejections, the target
    writes the chunk itself. No sample waits for the others.

    The expected share of rejected first chunks is at most ``alpha``, whatever the models are. With
    ``scores``, this holds on average over questions like the questions of the scores, and hard
    questions have more rejections. For later chunks, it holds as far as their scores resemble the
    scores of first chunks.

    The result is a sample with the most frequent answer (see ``majority``), or the sample that a
    scorer prefers. The method is lossy, because accepted text is the draft model's. ``alpha=1``
    samples the target, and ``alpha=0`` samples the draft model.

    When: a draft model is loaded that is nearly as good, and many samples are wanted.
    """

    n: int = parameter(8, 1, 48, "samples")
    chunk: int = parameter(64, 1, 4096, "tokens of a chunk")
    alpha: float = parameter(0.4, 0.0, 1.0, "share of chunks that is rejected, at most")
    attempts: int = parameter(1, 1, 16, "chunks that are drafted before the target writes one")
    calibration: int = parameter(16, 1, 64, "chunks that are drafted to calibrate")
    scores: str = local_path("a file of `paradecode train chunk-scores`, in their place")

    def __post_init__(self) -> None:
        self._known: list[float] | None = None
        if self.scores:
            known = ChunkScores.open(self.scores)
            if known.facts["chunk"] != self.chunk:
                fix = f"{self.scores} is of chunks of {known.facts['chunk']} tokens: give as many"
                raise InvalidInput("atts.chunk", self.chunk, fix)
            self._known = sorted(known.tensors["scores"].tolist())

    def search(self, task: SearchTask) -> Search:
        if task.params.logprobs is not None:
            raise InvalidInput("logprobs", task.params.logprobs, "atts reports none: leave it out")
        calibrated = self._known
        if calibrated is None:
            first = [ChunkedSample(self.chunk, 1, 0.0, None) for _ in range(self.calibration)]
            yield Grow([Start(self.n + i, decoder=one, forks=1) for i, one in enumerate(first)])
            calibrated = sorted(score for one in first for score in one.scores)
        self.samples = [
            ChunkedSample(self.chunk, self.attempts, self.alpha, calibrated) for _ in range(self.n)
        ]
        starts = [Start(i, decoder=one, forks=1) for i, one in enumerate(self.samples)]
        grown: list[Branch] = yield Grow(starts)
        answers = [final_answer(branch.text) for branch in grown]
        scores = [float(Counter(answers)[answer]) for answer in answers]
        if task.scorer:
            scores = yield Rate(grown)
        return Searched.in_order(grown, scores)
