"""DiffusionGemma's sampler: it refines all tokens of a canvas that begins as random tokens.

This module has the loop, the choice of accepted tokens and new random tokens, and the report of
each step.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Attend, Denoise, Forward, Reply, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Bias, Logits
from paradecode.core.noise import Purpose, key, uniform
from paradecode.core.trace import CanvasStep, token_logprobs
from paradecode.methods.parts import method, parameter

Tokens = NDArray[np.int32]


def check(seq: TokenSequence) -> None:
    """Raise InvalidInput if the model is no DiffusionGemma or the request is not supported.

    Constraints and penalties are not supported.
    """
    if not seq.about().canvas_length:
        fix = "renoise refines random tokens, as DiffusionGemma does: use a model of this kind"
        raise InvalidInput("model", seq.about().name, fix)
    if seq.sampler.matcher is not None:
        raise InvalidInput("constraint", "this one", "leave it out: renoise cannot follow any")
    if seq.params.penalised:
        raise InvalidInput("penalties", "these", "leave them out: renoise has none")


def surest(entropies: NDArray[np.float64], bound: float) -> NDArray[np.bool_]:
    """Return bool [K]: True for the lowest entropies, as many as ``bound`` allows.

    The chosen entropies, without the largest of them, sum to at most ``bound`` nats.
    """
    order = np.argsort(entropies, kind="stable")
    inside = np.cumsum(entropies[order]) - entropies[order] <= bound
    kept = np.zeros(len(entropies), bool)
    kept[order[inside]] = True
    return kept


def random_tokens(seed: int, start: int, step: int, size: int, vocabulary: int) -> Tokens:
    """Return int32 [size]: random token ids for a canvas that begins at position ``start``.

    The ids are a function of ``seed``, ``start`` and ``step`` alone.
    """
    base = key(seed, start, Purpose.DRAFT)
    drawn = uniform(key(base, step), np.arange(size))
    return (drawn * vocabulary).astype(np.int32)


def chosen(seq: TokenSequence, guess: Logits, at: Tokens, step: int) -> Tokens:
    """Return int32 [K]: a token for each position of ``at`` [K], the best one or a sampled one.

    ``step`` selects the random numbers for sampling.
    """
    if seq.sampler.warp.temperature == 0:
        return guess.argmax()
    base = key(seq.sampler.seed, step, Purpose.ORDER)
    return guess.sample(seq.sampler.warp, [key(base, position) for position in at.tolist()])


def allowed(seq: TokenSequence, logits: Logits) -> Logits:
    """Return the logits with the request's biases. Before ``min_tokens``, stop tokens get -inf."""
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
    """Reports each step of one canvas: the positions whose token was kept, changed or dropped."""

    def __init__(self, seq: TokenSequence, length: int) -> None:
        self.seq, self.length = seq, length
        self.first = len(seq.tokens) - seq.prompt_length
        self.known: dict[int, int] = {}

    def step(self, kept: NDArray[np.integer], tokens: Tokens, guess: Logits) -> None:
        self.seq.fill([], self._said(kept, tokens, guess), [])

    def end(self, best: Tokens, guess: Logits, raw: Logits) -> None:
        """Report that the canvas is finished, and add its best tokens to the text."""
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


@method(
    "renoise",
    family="diffusion",
    guarantee="lossy",
    training="the model, which was trained for it",
    paper="DiffusionGemma",
    names={
        "max_denoising_steps": "steps", "entropy_bound": "entropy", "t_max": "hottest",
        "t_min": "coolest", "stability_threshold": "stable", "confidence_threshold": "confidence",
    },
)  # fmt: skip
class Renoise:
    """On a canvas of random tokens, keep those that the model is sure of, and draw the others anew.

    This is the sampler that Google published with DiffusionGemma. The model first runs as an
    encoder, which writes the text so far into the K/V cache. Then a canvas of random tokens begins
    after the text. In each forward pass the model runs as a decoder, which guesses all tokens of
    the canvas and also reads its last guess. The tokens with the lowest entropies are kept: their
    entropies, without the largest, sum to at most ``entropy`` (EB-Sampler, arXiv 2505.24857). All
    other tokens become random again. Guesses are made at a temperature that falls from ``hottest``
    to ``coolest``.

    The canvas is finished when two conditions hold: its best tokens are the same as in the last
    ``stable`` steps, and their mean entropy is below ``confidence``. Then the best tokens become
    text.

    At temperature 0 a kept token is the best one. At other temperatures it is sampled; the
    published sampler uses temperature 1. The random tokens are a function of the seed.

    When: the model is a DiffusionGemma. This method cannot decode other models.
    """

    steps: int = parameter(48, 1, 4096, "most forwards of a canvas")
    entropy: float = parameter(0.1, 0.0, 1e6, "most nats of kept tokens, without the largest")
    hottest: float = parameter(0.8, 1e-3, 100.0, "temperature of the first guesses")
    coolest: float = parameter(0.4, 1e-3, 100.0, "temperature of the last guesses")
    stable: int = parameter(1, 0, 64, "earlier steps that must have had the same best tokens")
    confidence: float = parameter(0.005, 0.0, 64.0, "mean entropy of a finished canvas, in nats")

    def decode(self, seq: TokenSequence) -> Steps:
        check(seq)
        while not seq.finished:
            yield Forward(seq.pending, logits=np.empty(0, np.int32))
            yield from self._canvas(seq)

    def _canvas(self, seq: TokenSequence) -> Generator[Forward, Reply, None]:
        """Refine one canvas after the text, and report every step."""
        facts, start = seq.about(), len(seq.tokens)
        size = min(facts.canvas_length, facts.context_length - start)
        noise = partial(random_tokens, seq.sampler.seed, start, size=size,
                        vocabulary=facts.vocab_size)  # fmt: skip
        shown = ShownCanvas(seq, min(size, seq.room))
        at, guess, before = np.arange(start, start + size, dtype=np.int32), None, list[Tokens]()
        tokens = noise(self.steps + 1)
        for left in range(self.steps, 0, -1):
            reply = yield Forward(
                tokens, attend=Attend.FULL, store=Store.NONE, positions=at,
                logits=np.arange(size, dtype=np.int32), denoise=Denoise(guess),
            )  # fmt: skip
            heat = self.coolest + (self.hottest - self.coolest) * left / self.steps
            guess = allowed(seq, reply.logits).tempered(heat)
            best, doubt = guess.argmax(), guess.entropy()
            kept = surest(doubt, self.entropy)
            tokens = np.where(kept, chosen(seq, guess, at, left), noise(left))
            same = len(before) == self.stable and all((one == best).all() for one in before)
            if left == 1 or (same and doubt.mean() < self.confidence):
                shown.end(best, guess, reply.logits)
                return
            before = [*before, best][-self.stable :] if self.stable else []
            shown.step(np.flatnonzero(kept), tokens, guess)
