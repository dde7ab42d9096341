"""Jacobi decoding: guess many tokens, and let the model correct all of them at once.

:class:`RejectedDrafts` keeps rejected drafts, whose tokens may be right at a later place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.exploration import Exploration, random_tokens
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parts import choice, parameter

KINDS = 6
"""Kinds of evidence: guesses that were corrected 0, 1, ... times."""


class RejectedDrafts:
    """The latest ``most`` drafts that were not accepted to their end."""

    def __init__(self, most: int) -> None:
        self._kept = deque[list[int]](maxlen=most)

    def keep(self, tokens: list[int]) -> None:
        """Keep a draft; if it is there already, it becomes the latest."""
        if tokens in self._kept:
            self._kept.remove(tokens)
        self._kept.append(tokens)

    def after(self, token: int, most: int) -> list[list[int]]:
        """The tokens behind the first ``token`` in each draft that has it, the latest draft first,
        each once.

        Args:
            most: the most tokens from each draft.
        """
        found: list[list[int]] = []
        for draft in reversed(self._kept):
            if token in draft:
                tail = draft[draft.index(token) + 1 :][:most]
                if tail and tail not in found:
                    found.append(tail)
        return found


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
    without an accepted token all positions begin anew. Models gain little that were not trained for
    it by `paradecode train jacobi` (Jacobi Forcing, 2512.14681). ``recycle`` is what that paper
    adds: where one of the latest rejected drafts has the last token, what followed it there is a
    branch of the next draft. Half of all nodes are for these.

    When: to compare with, or for a model that was trained for consistency.
    """

    needs = Needs(noise=True)
    group = "jacobi"

    explore: str = choice("auto", ("auto", "always"), "auto stops where the rows cost too much")
    restart: int = parameter(3, 1, 64, "forwards without success before guesses begin anew")
    recycle: int = parameter(0, 0, 16, "rejected drafts that are remembered; the paper's code: 4")
    _guess: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _failures: int = field(default=0, repr=False)
    _branches: list[list[int]] = field(default_factory=list, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)

    def __post_init__(self) -> None:
        self._rejected = RejectedDrafts(self.recycle)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        self.whole = self._gain.pays(seq, self.offer.budget, limit, self.explore)
        if not self.whole:
            self._guess = []
            return
        if self._failures >= self.restart:
            self._guess, self._failures = [], 0
        branch = limit // (2 * self.recycle) if self.recycle else 0
        self._begin(seq, limit - branch * self.recycle)
        kinds = [min(times, KINDS - 1) for _, times in self._guess]
        draft.rate_chain([token for token, _ in self._guess], kinds)
        self._branches = self._rejected.after(int(seq.tokens[-1]), branch)
        for tokens in self._branches:
            draft.rate_chain(tokens, [0] * branch)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if len(tree) == 0:
            return
        right = len(verdict.tokens) - 1
        self._gain.book(right)
        self._failures = 0 if right else self._failures + 1
        if right < len(self._guess):
            self._rejected.keep([token for token, _ in self._guess])
        chains = [self._guess, *([(token, 0) for token in each] for each in self._branches)]
        fits = (c for c in chains if [token for token, _ in c[:right]] == verdict.tokens[:-1])
        guess = next(fits, self._guess)
        rows = [1 + node for node in tree.follow(token for token, _ in guess)]
        keys = [seq.sampler.noise_key(1 + depth) for depth in range(len(rows))]
        logits, warp = reply.logits.select(rows), seq.sampler.warp
        said = logits.sample(warp, keys) if self.offer.noise else logits.argmax()
        times = [*(times for _, times in guess[1 : len(rows)]), 0]
        self._guess = [(token, n + 1) for token, n in zip(said.tolist(), times)][right:]

    def _begin(self, seq: TokenSequence, limit: int) -> None:
        """Make as many guesses as the draft may have tokens."""
        text, drawn = seq.tokens, random_tokens(seq, limit)
        while len(self._guess) < limit:
            last = self._guess[-1][0] if self._guess else text[-1]
            seen = np.flatnonzero(text[:-1] == last)
            next_token = int(text[seen[-1] + 1]) if len(seen) else drawn[len(self._guess)]
            self._guess.append((next_token, 0))
        del self._guess[limit:]
