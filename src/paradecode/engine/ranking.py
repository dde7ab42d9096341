"""Scores many continuations of one context in the same forwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Request, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.logprobs import token_logprobs
from paradecode.core.trace import TokenLogprob
from paradecode.engine.prompt import NOTHING

ROWS = 128
"""Rows of one round, each of which may have logits over the whole vocabulary; more take more
memory."""
MOST_TOKENS = 512
"""The most tokens of one candidate; all of its rows must fit into one forward."""


class CandidateReader:
    """A decoder that commits no token and scores candidates; the request's prompt is the context.

    The context is read once. Candidates follow it at the same positions. A candidate sees the
    context and its own earlier tokens, but no other candidate, so its scores are those of a forward
    of its own. This is the packing of Uni-Encoder (Song et al. 2021, arXiv 2106.01263) for a causal
    model. No row of a candidate is stored. The object is its own factory.

    Args:
        candidates: int32 token ids of each candidate, at least one.

    Attributes:
        logprobs: for each candidate one entry for each token.
    """

    def __init__(self, candidates: Sequence[NDArray[np.int32]]) -> None:
        longest = max(map(len, candidates), default=0)
        if not candidates or min(map(len, candidates)) == 0 or longest > MOST_TOKENS:
            fix = f"give at least one, each of 1 to {MOST_TOKENS} tokens"
            raise InvalidInput("candidates", [len(each) for each in candidates], fix)
        self.candidates = candidates
        self.logprobs: list[list[TokenLogprob]] = []

    def __call__(self) -> CandidateReader:
        return self

    def decode(self, seq: TokenSequence) -> Steps:
        context = len(seq.tokens)
        reply = yield Forward(seq.pending)
        firsts = [int(each[0]) for each in self.candidates]
        first = token_logprobs(reply.logits, [0] * len(firsts), firsts, 0)
        self.logprobs = [[entry] for entry in first]
        for places in self._rounds():
            asked: list[Request] = [self._rows(place, context) for place in places]
            replies = yield asked
            for place, made in zip(places, replies):
                later = self.candidates[place][1:].tolist()
                self.logprobs[place] += token_logprobs(made.logits, range(len(later)), later, 0)
        seq.fill([], NOTHING, [], end="length")

    def _rows(self, place: int, context: int) -> Forward:
        tokens = self.candidates[place][:-1]
        rows = np.arange(len(tokens), dtype=np.int32)
        visible = np.arange(context, dtype=np.int32)
        return Forward(
            tokens, store=Store.NONE, positions=context + rows, visible=visible, logits=rows
        )

    def _rounds(self) -> Iterator[list[int]]:
        """Numbers of the candidates that are read together. A candidate of one token needs no
        rows, because the context predicts it."""
        places, rows = list[int](), 0
        for place, candidate in enumerate(self.candidates):
            if len(candidate) > 1:
                if places and rows + len(candidate) > ROWS:
                    yield places
                    places, rows = [], 0
                places.append(place)
                rows += len(candidate) - 1
        if places:
            yield places
