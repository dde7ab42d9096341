"""STAND: draft by drawing from what the model's distribution was after the same n-gram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.greedy_draws import GreedyDraws
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
    another. For verifiers that test p / q the tree is drawn from these distributions, node by node
    as ``dyspec`` does. With the coupled verifier the noise is that of the position itself, so that
    the draft is the very token the model draws if the stored distribution is right; at temperature
    0, and for other verifiers, the best tokens are taken. How likely a node is follows from how
    such nodes fared in this request, where the paper fits one tree of 80 nodes beforehand.

    When: several samples of one problem, or many requests alike, above temperature 0.
    """

    needs = Needs(all_rows=True, noise=True, draws=True)
    group = "stand"

    max_ngram: int = parameter(4, 2, 8, "longest n-gram that is looked up; the shortest has 2")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    width: int = parameter(3, 1, WIDTH, "most children of a node")

    def fill(self, seq: Sequence, draft: RatedTree, limit: int) -> None:
        store = seq.shared("stand", NgramDistributions)
        tail = tuple(seq.tokens[-self.max_ngram :].tolist())
        if self.offer.draws is not None and seq.sampler.warp.temperature > 0.0:
            self._draw_tree(seq, draft, limit, store, tail)
            return

        def candidates(path: Path) -> list[Candidate]:
            size, known = store.longest((*tail, *path), self.max_ngram)
            if known is None:
                return []
            scores = np.log(np.maximum(known[1], 1e-12))
            ids, chances = guess(seq, len(path), known[0], scores, self.offer.noise)
            # After pairs a token is right less often than after longer n-grams.
            kinds = [kind_of(chance) + 11 * (size == 2) for chance in chances]
            return list(zip(ids, kinds))[: self.width]

        grow(draft, limit, self.depth, candidates)

    def _draw_tree(
        self, seq: Sequence, draft: RatedTree, limit: int, store: NgramDistributions, tail: Path
    ) -> None:
        greedy, wanted = GreedyDraws(draft, limit), [ROOT]
        paths, sizes = {ROOT: tail}, dict[int, int]()
        while wanted:
            for node in wanted:
                if node != ROOT:
                    paths[node] = (*paths[draft.parents[node]], draft.tokens[node])
                sizes[node], known = store.longest(paths[node], self.max_ngram)
                if known is not None and len(paths[node]) < len(tail) + self.depth:
                    order = np.argsort(known[0])
                    chances = np.maximum(known[1][order], 1e-12)
                    q = chances ** (1.0 / seq.sampler.warp.temperature)
                    greedy.know(seq.sampler, node, known[0][order], q / q.sum(), self.width)
            wanted = greedy.draw()
        pairs = zip(draft.estimates, draft.parents)
        draft.rate_drawn([kind_of(q) + 11 * (sizes[parent] == 2) for q, parent in pairs])

    def learn(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        store = seq.shared("stand", NgramDistributions)
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits)).astype(np.float64)
        text = (*seq.tokens[-self.max_ngram :].tolist(), *verdict.tokens[:-1])
        for row in range(len(verdict.rows)):
            before = text[: len(text) - len(verdict.rows) + 1 + row]
            for size in range(2, min(self.max_ngram, len(before)) + 1):
                store.add(before[-size:], ids[row], chances[row])
