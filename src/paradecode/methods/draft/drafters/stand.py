"""STAND: draft by drawing from what the model's distribution was after the same n-gram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import Purpose, gumbel, mix
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.growth import Candidate, Path, grow, guess, log_softmax
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.ngram_distributions import WIDTH, NgramDistributions
from paradecode.methods.parameters import parameter


@drafter(
    "stand",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
    arxiv="2506.04708",
    aliases=("stochastic-ngram",),
)
@dataclass
class Stand(ModelFree):
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
    group = "stand"

    max_ngram: int = parameter(4, 2, 8, "longest n-gram that is looked up; the shortest has 2")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    width: int = parameter(3, 1, WIDTH, "most children of a node")

    def fill(self, seq: Sequence, draft: RatedTree, limit: int) -> None:
        store = seq.shared("stand", NgramDistributions)
        tail = tuple(seq.tokens[-self.max_ngram :].tolist())

        def candidates(path: Path) -> list[Candidate]:
            text = (*tail, *path)
            for size in range(min(self.max_ngram, len(text)), 1, -1):
                known = store.of(text[-size:])
                if known is not None:
                    ids, chances = self._drawn(seq, len(path), *known)
                    # After pairs a token is right less often than after longer n-grams.
                    return [(t, kind_of(p) + 11 * (size == 2)) for t, p in zip(ids, chances)]
            return []

        grow(draft, limit, self.depth, candidates)

    def learn(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        store = seq.shared("stand", NgramDistributions)
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits)).astype(np.float64)
        text = (*seq.tokens[-self.max_ngram :].tolist(), *verdict.tokens[:-1])
        for row in range(len(verdict.rows)):
            before = text[: len(text) - len(verdict.rows) + 1 + row]
            for size in range(2, min(self.max_ngram, len(before)) + 1):
                store.add(before[-size:], ids[row], chances[row])

    def _drawn(
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
