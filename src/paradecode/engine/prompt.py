"""Decoders that read a prompt without continuing it, for scores of tokens or for hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply, Decoder, Forward, Request, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Network
from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import CanvasStep, TokenLogprob, token_logprobs
from paradecode.engine.request import GenerationRequest, token_ids
from paradecode.models.config import ModelConfig

ROWS = 128
"""Number of rows of one forward pass.

Each row may have logits over the whole vocabulary, so a higher number takes more memory.
"""

NOTHING = CanvasStep((), (), (), (), (0, 0), 0)
Own = TypeVar("Own", bound="OneUse")


class OneUse:
    """A decoder that is its own factory: the object serves one request and stores the results."""

    def __call__(self: Own) -> Own:
        return self

    def end(self, seq: TokenSequence) -> None:
        """End the request without a further token."""
        seq.fill([], NOTHING, [], end="length")


class PromptReader(OneUse):
    """A decoder that reads the prompt and commits no token. The object is its own factory.

    Rows that are in the prefix cache are computed once more, over the cached rows before them, and
    are not stored. Their keys and values do not change, so the results do not change either.

    Args:
        top: number of best tokens to report besides each prompt token; None reports no scores.
        norm: float32 [hidden size], the gain of the model's final RMSNorm; given if hidden states
            are wanted.
        eps: epsilon of that norm.

    Attributes:
        logprobs: one entry for each prompt token except the first.
        mean: float32 [hidden size], the mean of all rows' hidden states after the final norm.
    """

    def __init__(
        self, top: int | None = None, norm: NDArray[np.float32] | None = None, eps: float = 0.0
    ) -> None:
        self.top, self.norm, self.eps = top, norm, eps
        self.logprobs: list[TokenLogprob] = []
        self.mean = np.zeros(0 if norm is None else len(norm), np.float32)

    def decode(self, seq: TokenSequence) -> Steps:
        tokens, cached = seq.tokens.copy(), len(seq.tokens) - len(seq.pending)
        length, start = len(tokens), 0
        while start < length:
            stop = min(start + ROWS, cached if start < cached else length)
            scored = 0 if self.top is None else min(stop, length - 1) - start
            forward = Forward(
                tokens[start:stop],
                store=Store.NONE if start < cached else Store.COMMIT,
                positions=np.arange(start, stop, dtype=np.int32),
                visible=np.arange(start, dtype=np.int32),
                logits=np.arange(scored, dtype=np.int32),
                hidden=() if self.norm is None else (-1,),
            )
            reply = yield forward
            if scored:
                following = tokens[start + 1 : start + 1 + scored].tolist()
                rows, top = range(scored), self.top or 0
                self.logprobs += token_logprobs(reply.logits, rows, following, top)
            if self.norm is not None:
                self._collect(reply.hidden[-1], length)
            start = stop
        self.end(seq)

    def _collect(self, states: NDArray[np.float32], length: int) -> None:
        scale = np.sqrt(np.mean(np.square(states, dtype=np.float64), axis=1) + self.eps)
        self.mean += ((states / scale[:, None]).sum(axis=0) * self.norm / length).astype(np.float32)


class LastStateReader(OneUse):
    """A decoder that reads the prompt's last hidden state, before the final norm.

    It commits no token. The object is its own factory.

    Args:
        network: a network with one input, ``x``, which reads the state; None outputs the state
            itself.

    Attributes:
        output: float32 [width of the network's result, or hidden size].
    """

    def __init__(self, network: Network | None = None) -> None:
        self.network = network
        self.output = np.zeros(0, np.float32)

    def decode(self, seq: TokenSequence) -> Steps:
        none = np.empty(0, np.int32)
        reply = yield Forward(seq.pending, logits=none, hidden=(-1,))
        outputs = reply.hidden[-1][-1:]
        if self.network is not None:
            outputs = yield Apply(self.network, {"x": outputs})
        self.output = np.array(outputs[0], np.float32)
        self.end(seq)


def reading_request(
    config: ModelConfig, ids: Sequence[int], reader: Callable[[], Decoder], **settings: Any
) -> GenerationRequest:
    """Make a request that only reads ``ids``; raise InvalidInput if the model is not causal."""
    if not config.writes:
        raise InvalidInput("model", config.name, "prompts are read by autoregressive models")
    params = SamplingParams(max_tokens=1)
    return GenerationRequest(token_ids(ids), reader, params, writes=False, **settings)


def unit_means(readers: Sequence[PromptReader]) -> NDArray[np.float32]:
    """Return the mean hidden states, each scaled to length 1: float32 [readers, hidden size].

    Args:
        readers: at least one.
    """
    means = np.stack([reader.mean for reader in readers])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return (means / np.maximum(lengths, 1e-12)).astype(np.float32)


# A reader that scores many continuations of one context in the same forwards.

MOST_TOKENS = 512
"""Largest number of tokens of one candidate; all of its rows must fit into one forward pass."""


class CandidateReader(OneUse):
    """A decoder that scores candidate continuations of the request's prompt; it commits no token.

    The prompt is the context and is read once. All candidates follow it at the same positions. A
    candidate attends to the context and its own earlier tokens, but to no other candidate, so its
    scores equal the scores of a separate forward pass. This is the packing of Uni-Encoder (Song et
    al. 2021, arXiv 2106.01263) for a causal model. No row of a candidate is stored. The object is
    its own factory.

    Args:
        candidates: int32 token ids of each candidate, at least one.

    Attributes:
        logprobs: for each candidate, one entry for each token.
    """

    def __init__(self, candidates: Sequence[NDArray[np.int32]]) -> None:
        longest = max(map(len, candidates), default=0)
        if not candidates or min(map(len, candidates)) == 0 or longest > MOST_TOKENS:
            fix = f"give at least one, each of 1 to {MOST_TOKENS} tokens"
            raise InvalidInput("candidates", [len(each) for each in candidates], fix)
        self.candidates = candidates
        self.logprobs: list[list[TokenLogprob]] = []

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
        self.end(seq)

    def _rows(self, place: int, context: int) -> Forward:
        tokens = self.candidates[place][:-1]
        rows = np.arange(len(tokens), dtype=np.int32)
        visible = np.arange(context, dtype=np.int32)
        return Forward(
            tokens, store=Store.NONE, positions=context + rows, visible=visible, logits=rows
        )

    def _rounds(self) -> Iterator[list[int]]:
        """Yield the indices of candidates that are read together.

        A candidate of one token needs no rows, because the context predicts it.
        """
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
