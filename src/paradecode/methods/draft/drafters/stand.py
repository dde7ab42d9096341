"""STAND: sample drafts from the model's earlier distributions after the same n-gram.

:class:`ShapedDraws` samples a tree of a shape that was chosen beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT, Mode, TokenTree
from paradecode.core.tree_builder import Ids, TreeBuilder, Weights, draw
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.greedy_draws import Draws, GreedyDraws
from paradecode.methods.draft.growth import Candidate, Path, fill, grow, guess, log_softmax
from paradecode.methods.draft.history import Recent
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree, load_tree
from paradecode.methods.parts import local_path, parameter

WIDTH = 10
"""Number of tokens that are stored after each n-gram."""

ENTRY_BYTES = 800
"""Bytes that an n-gram with ``WIDTH`` tokens takes in CPython."""

MOST_ENTRIES = 1 << 15


Distribution = tuple[NDArray[np.int32], NDArray[np.float64]]


class NgramDistributions(
    Recent[tuple[int, ...], tuple[int, NDArray[np.int32], NDArray[np.float64]]]
):
    """Stores the model's mean distribution after each n-gram; drops the one unused longest."""

    entry_bytes = ENTRY_BYTES

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        super().__init__(most_entries)

    def of(self, ngram: tuple[int, ...]) -> Distribution | None:
        """Return up to WIDTH token ids, most probable first, and their probabilities (sum 1)."""
        entry = self.get(ngram)
        return None if entry is None else entry[1:]

    def longest(self, text: tuple[int, ...], most: int) -> tuple[int, Distribution | None]:
        """Return the size and the distribution of the longest stored n-gram at the end of ``text``.

        The size is from 2 to ``most`` tokens, or 0 if no n-gram is stored.
        """
        for size in range(min(most, len(text)), 1, -1):
            known = self.of(text[-size:])
            if known is not None:
                return size, known
        return 0, None

    def learn(
        self, text: tuple[int, ...], most: int, ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> None:
        """Add the model's distribution after ``text`` to its last n-grams of 2 to ``most``."""
        for size in range(2, min(most, len(text)) + 1):
            self.add(text[-size:], ids, chances)

    def add(
        self, ngram: tuple[int, ...], ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> None:
        """Add one more distribution to the mean of an n-gram, which is cut to WIDTH tokens."""
        visits, old = 0, self.get(ngram)
        if old is not None:
            visits = old[0]
            mean = dict(zip(old[1].tolist(), (old[2] * visits / (visits + 1)).tolist()))
            for token, chance in zip(ids.tolist(), chances.tolist()):
                mean[token] = mean.get(token, 0.0) + chance / (visits + 1)
            best = sorted(mean.items(), key=lambda item: -item[1])[:WIDTH]
            ids = np.array([token for token, _ in best], np.int32)
            chances = np.array([chance for _, chance in best])
        self.put(ngram, (visits + 1, ids, chances / chances.sum()))


@dataclass
class ShapedDraws:
    """Samples a tree of a given shape: the shape says how many children each node gets."""

    tree: TreeBuilder
    shape: Mapping[Path, int]
    _ranks: dict[int, Path] = field(default_factory=lambda: {ROOT: ()})
    _wanted: list[int] = field(default_factory=list)

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        ranks = self._ranks[node]
        count = min(width, self.shape.get(ranks, 0))
        for rank, child in enumerate(draw(self.tree, sampler, node, Mode.SWOR, ids, q, count)):
            self._ranks[child] = (*ranks, rank)
            if self._ranks[child] in self.shape:
                self._wanted.append(child)

    def draw(self) -> list[int]:
        wanted, self._wanted = self._wanted, []
        return wanted


@drafter(
    "stand",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
    arxiv="2506.04708",
    aliases=("stochastic-ngram",),
)
class Stand(ModelFree):
    """Draw drafts, without replacement, from distributions stored for n-grams (Song 2025).

    Every row on the accepted path adds the probabilities of its ten best tokens to the n-grams
    before it, for all requests of a tenant. For verifiers that test p / q the tree is sampled from
    these distributions. For others the best tokens are taken after adding the target's own random
    numbers, so that a draft is what the model samples if the distributions are right.

    ``tree`` is the paper's tree, measured beforehand, of 64 nodes at most. Without it a draft grows
    where nodes with the same evidence were accepted most often in this request, or as ``dyspec``
    draws.

    When: several samples of one problem, or many requests alike, above temperature 0.
    """

    needs = Needs(all_rows=True, noise=True, draws=True)
    group = "stand"
    max_ngram: int = parameter(4, 2, 8, "longest n-gram that is looked up; the shortest has 2")
    depth: int = parameter(6, 1, 32, "most draft tokens on a path, if no tree is given")
    width: int = parameter(3, 1, WIDTH, "most children of a node, if no tree is given")
    tree: str = local_path("shape of the draft, by `paradecode train draft-tree`")

    def __post_init__(self) -> None:
        self._tree = load_tree(self.tree) if self.tree else None
        if self._tree is not None:
            self.depth, self.width = 32, WIDTH

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        store = seq.shared("stand", NgramDistributions)
        tail = tuple(seq.tokens[-self.max_ngram :].tolist())
        shape = {} if self._tree is None else self._tree.shape(limit)
        if self.offer.draws is not None and seq.sampler.warp.temperature > 0.0:
            free = self.offer.budget.drawing(draft, limit) or GreedyDraws(draft, limit)
            drawing = ShapedDraws(draft, shape) if shape else free
            return self._draw_tree(seq, draft, drawing, store, tail)

        def candidates(path: Path) -> list[Candidate]:
            size, known = store.longest((*tail, *path), self.max_ngram)
            if known is None:
                return []
            ids, scores = known[0], np.log(np.maximum(known[1], 1e-12))
            order, chances = guess(seq, len(path), ids, scores, self.offer.noise)
            kinds = [kind_of(chance) + 11 * (size == 2) for chance in chances]  # Pairs say less.
            return list(zip(order, kinds))[: self.width]

        return (
            fill(draft, shape, candidates) if shape else grow(draft, limit, self.depth, candidates)
        )

    def _draw_tree(
        self,
        seq: TokenSequence,
        draft: RatedTree,
        drawing: Draws,
        store: NgramDistributions,
        tail: Path,
    ) -> None:
        wanted, paths, sizes = [ROOT], {ROOT: tail}, dict[int, int]()
        while wanted:
            for node in wanted:
                if node != ROOT:
                    paths[node] = (*paths[draft.parents[node]], draft.tokens[node])
                sizes[node], known = store.longest(paths[node], self.max_ngram)
                if known is not None and len(paths[node]) < len(tail) + self.depth:
                    ids = known[0][order := np.argsort(known[0])]
                    _, q = guess(seq, 0, ids, np.log(np.maximum(known[1][order], 1e-12)), False)
                    drawing.know(seq.sampler, node, ids, np.array(q), self.width)
            wanted = drawing.draw()
        pairs = zip(draft.estimates, draft.parents)
        draft.rate_drawn([kind_of(q) + 11 * (sizes[parent] == 2) for q, parent in pairs])

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        store = seq.shared("stand", NgramDistributions)
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits)).astype(np.float64)
        text = (*seq.tokens[-self.max_ngram :].tolist(), *verdict.tokens[:-1])
        for row, one in enumerate(zip(ids, chances), len(text) - len(verdict.rows) + 1):
            store.learn(text[:row], self.max_ngram, *one)
