"""Grows a draft, best node first, from stored tokens that may follow a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.noise import gumbel
from paradecode.core.tree import ROOT
from paradecode.methods.draft.model_free import RatedTree

Path = tuple[int, ...]
"""Draft tokens on the way from the root to a node."""
Candidate = tuple[int, int]
"""A token that may come next, and the kind of evidence for it."""


def grow(
    draft: RatedTree, limit: int, deepest: int, candidates: Callable[[Path], Sequence[Candidate]]
) -> None:
    """Add the ``limit`` nodes that are most likely to be accepted, found best first.

    With the acceptance rates of a paper this gives that paper's fixed tree. With rates that are
    learned while decoding, the tree also fits small budgets and the present text.

    Args:
        limit, deepest: the most nodes, and the most levels of the tree.
        candidates: function from a path to the tokens that may follow it, most probable first.
    """
    odds = draft.odds
    heap: list[tuple[float, int, float, int, Path, Sequence[Candidate], int]] = []

    def push(reach: float, parent: int, path: Path, found: Sequence[Candidate], rank: int) -> None:
        if rank < len(found):
            chance = reach * odds.of(found[rank][1])
            heappush(heap, (-chance, len(draft), reach, parent, path, found, rank))

    push(1.0, ROOT, (), candidates(()), 0)
    while heap and len(draft) < limit:
        _, _, reach, parent, path, found, rank = heappop(heap)
        token, kind = found[rank]
        node = draft.rate(parent, token, kind)
        push(reach, parent, path, found, rank + 1)
        if len(path) + 1 < deepest:
            longer = (*path, token)
            push(reach * odds.of(kind), node, longer, candidates(longer), 0)


def fill(
    draft: RatedTree, shape: Mapping[Path, int], candidates: Callable[[Path], Sequence[Candidate]]
) -> None:
    """Add the nodes of a fixed tree shape for which there are enough candidates.

    Args:
        shape: number of children of each inner node. A key has the ranks among siblings from the
            root.
        candidates: function from a path to the tokens that may follow it, most probable first.
    """
    level: list[tuple[Path, int, Path]] = [((), ROOT, ())]
    for ranks, parent, path in level:  # The loop appends to ``level``.
        wanted = shape.get(ranks, 0)
        for rank, (token, kind) in enumerate(candidates(path)[:wanted] if wanted else ()):
            level.append(((*ranks, rank), draft.rate(parent, token, kind), (*path, token)))


def guess(
    seq: TokenSequence,
    depth: int,
    ids: NDArray[np.int32],
    scores: NDArray[np.floating],
    noise: bool,
) -> tuple[list[int], list[float]]:
    """Rank tokens by stored log-probabilities; return their ids and probabilities, best first.

    Under coupled verification the token after ``depth`` draft tokens is the argmax of the target's
    log-probabilities plus Gumbel random numbers of that position. These numbers are known before
    the target runs. Stored log-probabilities plus these numbers therefore predict a sampled token
    nearly as well as a greedy one (cf. Daliri, Musco and Suresh 2024, arXiv 2408.07978). Other
    verifiers need drafts that are independent of the random numbers, so ``noise`` is False for
    them.

    Args:
        ids, scores: [k], token ids and stored log-probabilities, the highest first.
        noise: True adds the target's random numbers, at a temperature above 0.
    """
    temperature = seq.sampler.warp.temperature
    order: NDArray[np.integer] = np.arange(len(ids))
    if temperature > 0.0:
        scores = scores / temperature
        if noise:
            scores = scores + gumbel(seq.sampler.noise_key(depth), ids)
            order = np.argsort(-scores, kind="stable")
    weights = np.exp(scores - scores.max())
    return ids[order].tolist(), (weights / weights.sum())[order].tolist()


def log_softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-probabilities among the k tokens of each row, float32 [R, k].

    The rest of the vocabulary seldom matters compared with the best few tokens, and normalising
    over all of it would cost more than the draft.
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def accepted_last(verdict: Verdict, rows: int) -> list[int]:
    """Return the indices of all rows of a reply, with the rows of the accepted path at the end.

    A table that stores the last entry for a token then has the entry of the accepted text.
    """
    path = set(verdict.rows)
    return [row for row in range(rows) if row not in path] + list(verdict.rows)
