"""Measure which nodes of a draft tree are right: they give the tree shape that `stand` fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.noise import mix
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.core.tree_builder import draw_swor
from paradecode.llm import LLM
from paradecode.methods.draft.budgets.shapes import Path
from paradecode.methods.draft.drafters.stand import WIDTH, NgramDistributions, Stand
from paradecode.methods.draft.growth import log_softmax
from paradecode.methods.draft.loop import Budget, DraftVerify
from paradecode.methods.draft.model_free import MOST_PLACES, DraftTree
from paradecode_lab.measure.prompts import Item
from paradecode_lab.training.acceptance.workload import Progress, play

DEEPEST = 16
DRAFT = 8
"""Number of nodes in each draft while the rows are recorded."""

Row = tuple[int, NDArray[np.int32], NDArray[np.float64]]
"""A token of an answer, and the most likely tokens at its place with their probabilities."""


class Recorded(Stand):
    """The method `stand`, which also records the rows of the answers that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: tuple[int, ...] = ()
        self.rows: list[Row] = []

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        super().learn(seq, tree, reply, verdict)
        if not self.rows:
            self.begun = tuple(seq.tokens[-self.max_ngram :].tolist())
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits)).astype(np.float64)
        self.rows += zip(verdict.tokens, ids, chances)


def measure_tree(
    llm: LLM, items: Sequence[Item], params: SamplingParams, progress: Progress
) -> DraftTree:
    """Decode a workload once, and measure how often each node of a large draft tree is right.

    The answers are known afterwards, so a tree of any size can be judged by following them. Here
    each node has WIDTH children, the tree has DEEPEST levels, and a draft uses only what was
    learned before it. Above temperature 0, candidates are drawn, as for verifiers that accept with
    probability p / q.

    Raises:
        InvalidInput: if not one draft was right.
    """
    drafters = list[Recorded]()

    def recorded() -> DraftVerify:
        drafters.append(Recorded())
        return DraftVerify(drafters[-1], Budget(DRAFT))

    play(llm, items, cast(Any, recorded), params, lambda number: Budget(DRAFT), progress)
    store, right, drafts = NgramDistributions(), Counter[Path](), 0
    for number, drafter in enumerate(drafters):
        drafts += _judge(store, drafter, params.temperature, mix(number), right)
    if not right:
        raise InvalidInput(
            "prompts", len(items), "give more, or longer answers: no draft was right"
        )
    return DraftTree(rates_of(right, drafts))


def _judge(
    store: NgramDistributions, drafter: Recorded, temperature: float, key: int, right: Counter[Path]
) -> int:
    """Draft along one answer, and return the number of drafts.

    Nodes that were right are added to ``right``.
    """
    most, rows, drafts, place = drafter.max_ngram, drafter.rows, 0, 0
    ranks: Path
    text = (*drafter.begun, *(token for token, _, _ in rows))
    begun = len(drafter.begun)
    while place < len(rows):
        ranks, key = (), mix(key)
        for token, _, _ in rows[place : place + DEEPEST]:
            _, known = store.longest(text[: begun + place + len(ranks)], most)
            order = [] if known is None else _ordered(*known, temperature, mix(key + len(ranks)))
            if token not in order:
                break
            ranks = (*ranks, order.index(token))
            right[ranks] += 1
        drafts += 1
        end = min(place + len(ranks) + 1, len(rows))
        for at in range(place, end):
            store.learn(text[: begun + at], most, *rows[at][1:])
        place = end
    return drafts


def _ordered(
    ids: NDArray[np.int32], chances: NDArray[np.float64], temperature: float, key: int
) -> list[int]:
    """Return the candidates after a node, in the order in which they become its children."""
    if temperature == 0.0:
        return ids.tolist()
    q = np.maximum(chances, 1e-12) ** (1.0 / temperature)
    return draw_swor(ids, q / q.sum(), key, len(ids))


def rates_of(right: Counter[Path], drafts: int) -> dict[Path, float]:
    """Return how often each node was right together with all its ancestors.

    A later sibling that was right more often by chance passes its rate on to the siblings before
    it.

    Args:
        right: number of drafts in which each node was right.
        drafts: number of drafts.
    """
    rates: dict[Path, float] = {}
    for ranks, count in right.most_common(MOST_PLACES):
        for level in range(1, len(ranks) + 1):
            for rank in range(ranks[level - 1] + 1):
                place = (*ranks[: level - 1], rank)
                rates[place] = max(rates.get(place, 0.0), count / drafts)
    best = sorted(rates, key=lambda place: (-rates[place], len(place), place))
    return {place: rates[place] for place in best[:MOST_PLACES]}
