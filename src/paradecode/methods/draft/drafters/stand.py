"""STAND: draft by drawing from what the model's distribution was after the same n-gram."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import Purpose, gumbel, mix
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.growth import (
    Candidate,
    Trie,
    confidence,
    grow,
    guess,
    log_softmax,
)
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import parameter

WIDTH = 10
"""Tokens kept after each n-gram."""

MOST_ENTRIES = 1 << 15

LONG_PRIOR = (0.02, 0.02, 0.03, 0.06, 0.2, 0.35, 0.45, 0.6, 0.75, 0.8, 0.88)
SHORT_PRIOR = (0.05, 0.04, 0.05, 0.07, 0.1, 0.12, 0.17, 0.25, 0.35, 0.35, 0.42)
"""Chance that a token is right, by its stored probability, after n-grams of three and more tokens
and after pairs (measured, 135M)."""


class Distributions:
    """n-gram -> the model's mean distribution after it; the n-gram unused longest goes first."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self.most_entries = most_entries
        self._entries: OrderedDict[
            tuple[int, ...], tuple[int, NDArray[np.int32], NDArray[np.float64]]
        ] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, ngram: tuple[int, ...]) -> tuple[NDArray[np.int32], NDArray[np.float64]] | None:
        """Up to WIDTH token ids, the most likely first, and their probabilities (sum 1)."""
        entry = self._entries.get(ngram)
        return None if entry is None else entry[1:]

    def add(
        self, ngram: tuple[int, ...], ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> None:
        """One more visit: the running mean of all visits, cut to the WIDTH likeliest tokens."""
        visits, old = 0, self._entries.get(ngram)
        if old is not None:
            visits = old[0]
            mean = dict(zip(old[1].tolist(), (old[2] * visits / (visits + 1)).tolist()))
            for token, chance in zip(ids.tolist(), chances.tolist()):
                mean[token] = mean.get(token, 0.0) + chance / (visits + 1)
            best = sorted(mean.items(), key=lambda item: -item[1])[:WIDTH]
            ids = np.array([token for token, _ in best], np.int32)
            chances = np.array([chance for _, chance in best])
        self._entries[ngram] = (visits + 1, ids, chances / chances.sum())
        self._entries.move_to_end(ngram)
        if len(self._entries) > self.most_entries:
            self._entries.popitem(last=False)


@drafter(
    "stand",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
    arxiv="2506.04708",
    aliases=("stochastic-ngram",),
)
@dataclass
class Stand(Drafter):
    """Draw drafts, without replacement, from distributions stored for n-grams (Song 2025).

    Every accepted row adds its ten best tokens' probabilities to the n-grams of 2 to 4 tokens
    before it; all requests of a tenant share them, so that many samples of one problem help one
    another. A node's children are the Gumbel-top-k of what its longest known n-gram says; at
    temperature 0 simply the best. With the coupled verifier the noise is that of the position
    itself, so that the draft is the very token the model draws if the stored distribution is right.
    Which nodes are worth verifying follows from how such nodes fared in this request.

    When: several samples of one problem, or many requests alike, above temperature 0.
    """

    needs = Needs(all_rows=True, noise=True)

    max_ngram: int = parameter(4, 2, 8, "longest n-gram that is looked up; the shortest has 2")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    width: int = parameter(3, 1, WIDTH, "most children of a node")
    _odds: Odds = field(default_factory=lambda: Odds((*LONG_PRIOR, *SHORT_PRIOR)), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        store = seq.shared("stand", Distributions)
        tail = tuple(seq.tokens[-self.max_ngram :].tolist())

        def candidates(path: tuple[int, ...]) -> list[Candidate]:
            text = (*tail, *path)
            for size in range(min(self.max_ngram, len(text)), 1, -1):
                known = store.of(text[-size:])
                if known is not None:
                    ids, chances = self._draw(seq, len(path), *known)
                    kinds = [confidence(chance) + 11 * (size == 2) for chance in chances]
                    return [(t, self._odds.of(kind), kind) for t, kind in zip(ids, kinds)]
            return []

        self._draft = grow(limit, self.depth, candidates)
        return self._draft.tree() if len(self._draft) else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.book(self._odds, tree, verdict)
        self._draft = Trie()
        store = seq.shared("stand", Distributions)
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits)).astype(np.float64)
        text = (*seq.tokens[-self.max_ngram :].tolist(), *verdict.tokens[:-1])
        for row in range(len(verdict.rows)):
            before = text[: len(text) - len(verdict.rows) + 1 + row]
            for size in range(2, min(self.max_ngram, len(before)) + 1):
                store.add(before[-size:], ids[row], chances[row])

    def _draw(
        self, seq: Sequence, depth: int, ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> tuple[list[int], list[float]]:
        """Children in the order they were drawn, and how likely each is thought to be."""
        scores = np.log(np.maximum(chances, 1e-12))
        if seq.sampler.warp.temperature == 0.0 or self.offer.noise:
            tokens, weights = guess(seq, depth, ids, scores, self.offer.noise)
            return tokens[: self.width], weights[: self.width]
        scores = scores / seq.sampler.warp.temperature
        # One stream a context: two nodes at the same depth must not draw alike.
        noise = gumbel(mix(seq.sampler.noise_key(depth, Purpose.DRAFT) ^ int(ids.sum())), ids)
        order = np.argsort(-(scores + noise), kind="stable")[: self.width]
        weights_ = np.exp(scores - scores.max())
        return ids[order].tolist(), (weights_ / weights_.sum())[order].tolist()
