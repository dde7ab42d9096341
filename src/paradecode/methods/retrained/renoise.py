"""A canvas of random tokens is refined as a whole: DiffusionGemma's sampler."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

import numpy as np

from paradecode.core.decoder import Steps
from paradecode.core.request import Attend, Denoise, Forward, Reply, Store
from paradecode.core.sequence import TokenSequence
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import method
from paradecode.methods.retrained.random_canvas import (
    ShownCanvas,
    Tokens,
    allowed,
    check,
    chosen,
    random_tokens,
    surest,
)


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
@dataclass
class Renoise:
    """Keep what the model is sure of on a canvas of random tokens, and draw the rest anew.

    The sampler that Google published with DiffusionGemma. The text so far is written into the cache
    by the model as an encoder. Then a canvas behind it begins as random tokens. In each forward the
    model, as a decoder, guesses all tokens of the canvas at once; it reads its last guess, too. The
    surest tokens are kept whose entropies, without the largest of them, add up to at most
    ``entropy`` (EB-Sampler, arXiv 2505.24857); all others become random again. Guesses are made at
    a temperature that falls from ``hottest`` to ``coolest``. The canvas is done when its best
    tokens were the same in ``stable`` steps before and their mean entropy is below ``confidence``.
    Then the best tokens are text.

    At temperature 0 a kept token is the best one, else it is drawn: at temperature 1 as published.
    The random tokens are a function of the seed.

    When: the model is a DiffusionGemma. No other model can be decoded so.
    """

    steps: int = parameter(48, 1, 4096, "most forwards of a canvas")
    entropy: float = parameter(0.1, 0.0, 1e6, "nats of the kept tokens, but for the largest")
    hottest: float = parameter(0.8, 1e-3, 100.0, "temperature of the first guesses")
    coolest: float = parameter(0.4, 1e-3, 100.0, "temperature of the last guesses")
    stable: int = parameter(1, 0, 64, "steps before that had the same best tokens")
    confidence: float = parameter(0.005, 0.0, 64.0, "nats: mean entropy of a canvas that is done")

    def decode(self, seq: TokenSequence) -> Steps:
        check(seq)
        while not seq.finished:
            yield Forward(seq.pending, logits=np.empty(0, np.int32))
            yield from self._canvas(seq)

    def _canvas(self, seq: TokenSequence) -> Generator[Forward, Reply, None]:
        """Refine the canvas behind the text, and report every step."""
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
