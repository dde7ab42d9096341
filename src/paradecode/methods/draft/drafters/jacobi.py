"""Jacobi decoding: guess many tokens, and let the model correct all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.exploration import Exploration, random_tokens
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parameters import choice, parameter

KINDS = 6
"""Guesses that were corrected 0, 1, ... times."""


@drafter(
    "jacobi",
    paper="Accelerating Transformer Inference for Translation via Parallel Decoding",
    arxiv="2305.10427",
    aliases=("parallel-jacobi",),
)
@dataclass
class Jacobi(ModelFree):
    """Solve for several tokens at once by Jacobi iteration (Santilli 2023).

    The draft is what the model said, in the last forward, about the positions behind the accepted
    tokens; the wrong guesses it was based on get better from forward to forward. New positions
    begin with what followed the token before them last time, or else with random tokens of the
    text. A guess that is right but for its place never gets better; after ``restart`` forwards
    without an accepted token all positions begin anew. Models that were not trained for consistency
    gain little from all this.

    When: to compare with, or for a model that was trained for consistency.
    """

    needs = Needs(noise=True)
    group = "jacobi"

    explore: str = choice("auto", ("auto", "always"), "auto stops where the rows cost too much")
    restart: int = parameter(3, 1, 64, "forwards without success before guesses begin anew")
    _guess: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _failures: int = field(default=0, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)

    def fill(self, seq: Sequence, draft: RatedTree, limit: int) -> None:
        self.whole = self.explore == "always" or self._gain.pays(seq, limit)
        if not self.whole:
            self._guess = []
            return
        if self._failures >= self.restart:
            self._guess, self._failures = [], 0
        self._begin(seq, limit)
        kinds = [min(times, KINDS - 1) for _, times in self._guess]
        draft.rate_chain([token for token, _ in self._guess], kinds)

    def learn(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if len(tree) == 0:
            return
        self._gain.book(len(verdict.tokens) - 1)
        self._failures = 0 if len(verdict.tokens) > 1 else self._failures + 1
        keys = [seq.sampler.noise_key(row) for row in range(len(tree) + 1)]
        logits, warp = reply.logits, seq.sampler.warp
        said = logits.sample(warp, keys) if self.offer.noise else logits.argmax()
        times = [times for _, times in self._guess[: len(tree)]]
        corrected = zip(said[1:].tolist(), [*times[1:], 0], strict=True)
        self._guess = [(token, n + 1) for token, n in corrected][len(verdict.tokens) - 1 :]

    def _begin(self, seq: Sequence, limit: int) -> None:
        """Make as many guesses as the draft may have tokens."""
        text = seq.tokens
        drawn = random_tokens(seq, limit)
        while len(self._guess) < limit:
            last = self._guess[-1][0] if self._guess else text[-1]
            seen = np.flatnonzero(text[:-1] == last)
            next_token = int(text[seen[-1] + 1]) if len(seen) else drawn[len(self._guess)]
            self._guess.append((next_token, 0))
        del self._guess[limit:]
