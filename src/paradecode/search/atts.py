"""ATTS: samples that a draft model writes, of which the target rejects a calibrated share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import declare, local_path, parameter
from paradecode.search.branch import (
    Asked,
    Branch,
    Grow,
    Rate,
    Searched,
    SearchTask,
    Start,
    in_order,
)
from paradecode.search.chunk_scores import ChunkScores
from paradecode.search.chunked import ChunkedSample
from paradecode.search.majority import final_answer


@declare(
    "search", "atts", paper="ATTS: Asynchronous Test-Time Scaling via Conformal Prediction",
    arxiv="2509.15148", guarantee="lossy",
)  # fmt: skip
@dataclass
class AsynchronousScaling:
    """Samples ``n`` outputs that the draft model writes chunk by chunk, each at its own pace.

    The target reads each chunk in one forward. The score of a chunk is the logarithm of its
    perplexity in the target. Its p-value is the conformal one among ``calibration`` first chunks,
    which are drafted for this prompt beforehand, or among ``scores`` of other questions. A chunk
    with a p-value of at most ``alpha`` is rejected. After ``attempts`` rejections the target writes
    the chunk itself. No sample waits for the others.

    The expected share of first chunks that are rejected is at most ``alpha``, whatever the models.
    With ``scores`` this holds over all questions of their kind, and a hard question loses more.
    For later chunks it holds as far as their scores resemble those of first chunks. The result is a
    sample with the most frequent answer (see ``majority``), or the one that a scorer prefers. The
    method is lossy: accepted text is the draft model's. ``alpha=1`` samples the target, ``alpha=0``
    the draft model.

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

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
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
        return in_order(grown, scores)
