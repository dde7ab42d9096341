"""Growing a draft: a trie that knows why each node was proposed, and best-first growth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import gumbel
from paradecode.core.sequence import Sequence as LiveSequence
from paradecode.core.sequence import Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.odds import Odds

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)

Candidate = tuple[int, float, int]
"""A token that may come next, the chance that it does, and the kind of evidence for it."""


def confidence(probability: float) -> int:
    """Kind of evidence, 0 to 10, that a stored probability is.

    A token is right less often than the model once thought, because the text before it differs.
    """
    return bisect_right(_EDGES, probability)


class Trie:
    """A draft in the making: equal tokens under one parent are one node.

    Each node has a *kind*: the evidence it rests on. After a verification :meth:`book` counts how
    the kinds fared, whatever the budget cut away and whatever other drafters added to the tree.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._estimates: list[float] = []
        self._kinds: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, parent: int, token: int, estimate: float, kind: int = 0) -> int:
        """The node of ``token`` under ``parent``; a node that is there already stays as it is."""
        node = self._children.get((parent, token))
        if node is None:
            node = self._children[parent, token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._estimates.append(estimate)
            self._kinds.append(kind)
        return node

    def chain(self, tokens: Iterable[int], kinds: Iterable[int], odds: Odds) -> None:
        """Add tokens that follow one another from the root, each with its kind of evidence."""
        node = ROOT
        for token, kind in zip(tokens, kinds):
            node = self.add(node, token, odds.of(kind), kind)

    def tree(self) -> TokenTree:
        return TokenTree(
            np.array(self._tokens, np.int32),
            np.array(self._parents, np.int32),
            np.array(self._estimates, np.float32),
        )

    def locate(self, tree: TokenTree) -> dict[int, int]:
        """Nodes of ``tree`` -> the nodes here with the same path; foreign ones are left out."""
        found = {ROOT: ROOT}
        for node, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        ):
            if parent in found:
                mine = self._children.get((found[parent], token))
                if mine is not None:
                    found[node] = mine
        return found

    def book(self, odds: Odds, tree: TokenTree, verdict: Verdict) -> None:
        """Count, by kind, the nodes that a verification judged: those with an accepted parent."""
        if not self._tokens or len(tree) == 0:
            return
        accepted = {row - 1 for row in verdict.rows}
        tally: dict[int, list[int]] = {}
        for node, mine in self.locate(tree).items():
            if node != ROOT and int(tree.parents[node]) in accepted:
                counts = tally.setdefault(self._kinds[mine], [0, 0])
                counts[0] += node in accepted
                counts[1] += 1
        for kind, (right, tried) in tally.items():
            odds.update(kind, right, tried)


def grow(
    limit: int, deepest: int, candidates: Callable[[tuple[int, ...]], Sequence[Candidate]]
) -> Trie:
    """The ``limit`` nodes that are most likely to be accepted, found best first.

    A fixed tree of some paper is what this gives for the acceptance rates of that paper; with rates
    that are learnt while decoding, the tree is right for small budgets and for this text as well.

    Args:
        limit, deepest: most nodes, and most tokens in a row.
        candidates: what may follow a path of draft tokens, the most likely first.
    """
    trie = Trie()
    heap: list[tuple[float, int, float, int, tuple[int, ...], Sequence[Candidate], int]] = []

    def push(
        reach: float, parent: int, path: tuple[int, ...], found: Sequence[Candidate], rank: int
    ) -> None:
        if rank < len(found):
            chance = reach * found[rank][1]
            heappush(heap, (-chance, len(trie), reach, parent, path, found, rank))

    push(1.0, ROOT, (), candidates(()), 0)
    while heap and len(trie) < limit:
        _, _, reach, parent, path, found, rank = heappop(heap)
        token, estimate, kind = found[rank]
        node = trie.add(parent, token, estimate, kind)
        push(reach, parent, path, found, rank + 1)
        if len(path) + 1 < deepest:
            longer = (*path, token)
            push(reach * estimate, node, longer, candidates(longer), 0)
    return trie


def guess(
    seq: LiveSequence,
    depth: int,
    ids: NDArray[np.int32],
    scores: NDArray[np.floating],
    shares_noise: bool,
) -> tuple[list[int], list[float]]:
    """Rank tokens by stored log-probabilities: ids, most likely first, and their probabilities.

    Under coupled verification the token after ``depth`` draft tokens is the argmax of the target's
    log-probabilities plus the noise of that position. The noise is known before the target is
    asked, so adding it to the *stored* log-probabilities guesses a sampled token nearly as well as
    a greedy one (cf. Daliri, Musco and Suresh 2024, arXiv 2408.07978). Other verifiers must draw
    independently of the draft, so ``shares_noise`` is False for them.

    Args:
        ids, scores: [k], the best first.
    """
    temperature = seq.sampler.warp.temperature
    order: NDArray[np.integer] = np.arange(len(ids))
    if temperature > 0.0:
        scores = scores / temperature
        if shares_noise:
            scores = scores + gumbel(seq.sampler.noise_key(depth), ids)
            order = np.argsort(-scores, kind="stable")
    weights = np.exp(scores - scores.max())
    return ids[order].tolist(), (weights / weights.sum())[order].tolist()


def log_softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [R, k]: log-probabilities among the k tokens of each row.

    Among the best few, the rest of the vocabulary seldom matters, and normalising over all of it
    would cost more than the draft.
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def accepted_last(verdict: Verdict, rows: int) -> list[int]:
    """All rows of a reply, those on the accepted path behind the others: for stores in which the
    last entry for a token wins, the one that stood in the real text should."""
    path = set(verdict.rows)
    return [row for row in range(rows) if row not in path] + list(verdict.rows)


@dataclass
class Exploration:
    """Whether rows that help later drafts, more than this one, pay at present.

    A budget that weighs each node by its own chance would never verify them. So they are drafted as
    a whole or not at all: while the tokens that drafts gain a step, as of late, are worth what the
    whole costs. Once they are not, there is nothing new to learn from, and the rest of the request
    goes on without.
    """

    gain: float = 1.0

    def pays(self, seq: LiveSequence, nodes: int) -> bool:
        """True also while nothing was measured."""
        base = seq.step_seconds(1)
        if base is None:
            return True
        alone = 1 + seq.neighbours
        return (alone + self.gain) * base > alone * (seq.step_seconds(1 + nodes) or base)

    def book(self, accepted: int) -> None:
        self.gain += 0.1 * (accepted - self.gain)
