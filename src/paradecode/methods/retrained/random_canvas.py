"""A canvas of random tokens: what is kept of it, drawn for it, and reported of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Bias, Logits
from paradecode.core.logprobs import token_logprobs
from paradecode.core.noise import Purpose, key, uniform
from paradecode.core.sequence import TokenSequence
from paradecode.core.trace import CanvasStep

Tokens = NDArray[np.int32]


def check(seq: TokenSequence) -> None:
    """Raise InvalidInput for another model, or what the sampler cannot follow."""
    if not seq.about().canvas_length:
        fix = "renoise refines random tokens, as DiffusionGemma does: use a model of this kind"
        raise InvalidInput("model", seq.about().name, fix)
    if seq.sampler.matcher is not None:
        raise InvalidInput("constraint", "this one", "leave it out: renoise cannot follow any")
    if seq.params.penalised:
        raise InvalidInput("penalties", "these", "leave them out: renoise has none")


def surest(entropies: NDArray[np.float64], bound: float) -> NDArray[np.bool_]:
    """bool [K]: the least entropies whose sum, without the largest, is at most ``bound``."""
    order = np.argsort(entropies, kind="stable")
    inside = np.cumsum(entropies[order]) - entropies[order] <= bound
    kept = np.zeros(len(entropies), bool)
    kept[order[inside]] = True
    return kept


def random_tokens(seed: int, start: int, step: int, size: int, vocabulary: int) -> Tokens:
    """int32 [size]: what a canvas that begins at ``start`` has where nothing is kept of a step."""
    base = key(seed, start, Purpose.DRAFT)
    drawn = uniform(key(base, step), np.arange(size))
    return (drawn * vocabulary).astype(np.int32)


def chosen(seq: TokenSequence, guess: Logits, at: Tokens, step: int) -> Tokens:
    """A token for each position ``at`` [K]: the best one, or drawn with noise of this step."""
    if seq.sampler.warp.temperature == 0:
        return guess.argmax()
    base = key(seq.sampler.seed, step, Purpose.ORDER)
    return guess.sample(seq.sampler.warp, [key(base, position) for position in at.tolist()])


def allowed(seq: TokenSequence, logits: Logits) -> Logits:
    """The logits with the request's biases; ends are banned before ``min_tokens``."""
    params, size = seq.params, logits.shape[0]
    added = dict(params.logit_bias or {})
    early = added | dict.fromkeys(seq.sampler.stop_ids.tolist(), -np.inf)
    first = params.min_tokens - (len(seq.tokens) - seq.prompt_length)
    if not added and first <= 0:
        return logits
    return logits.with_bias([_sparse(early if row < first else added) for row in range(size)])


def _sparse(added: dict[int, float]) -> Bias:
    return np.array([*added], np.int32), np.array([*added.values()], np.float32)


class ShownCanvas:
    """What is reported of one canvas: in each step the positions that became sure, or changed."""

    def __init__(self, seq: TokenSequence, length: int) -> None:
        self.seq, self.length = seq, length
        self.first = len(seq.tokens) - seq.prompt_length
        self.known: dict[int, int] = {}

    def step(self, kept: NDArray[np.integer], tokens: Tokens, guess: Logits) -> None:
        self.seq.fill([], self._said(kept, tokens, guess), [])

    def end(self, best: Tokens, guess: Logits, raw: Logits) -> None:
        """The canvas is text."""
        rows, count = range(self.length), self.seq.params.logprobs
        said = best[: self.length].tolist()
        logprobs = [] if count is None else token_logprobs(raw, rows, said, count)
        self.seq.fill(said, self._said(np.arange(self.length), best, guess), logprobs)

    def _said(self, kept: NDArray[np.integer], tokens: Tokens, guess: Logits) -> CanvasStep:
        kept = kept[kept < self.length]
        now = dict(zip(kept.tolist(), tokens[kept].tolist()))
        gone = sorted(self.known.keys() - now.keys())
        fresh = [at for at, token in now.items() if self.known.get(at) != token]
        sure = np.empty(0)
        if fresh:
            sure = np.exp(guess.select(fresh).log_probability(tokens[fresh][:, None])[:, 0])
        self.known = now
        places = [tuple(self.first + at for at in each) for each in (fresh, gone)]
        return CanvasStep(
            places[0], tuple(tokens[fresh].tolist()), tuple(map(float, sure)), places[1],
            (self.first, self.first + self.length), self.first + self.length,
        )  # fmt: skip
