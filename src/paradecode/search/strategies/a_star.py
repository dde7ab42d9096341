"""A*-Decoding: expand the best partial answer, until a complete answer is the best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.branch import Branch, Grow, Rate, Search, Searched, SearchTask, Start


@declare("search", "a-star", paper="A*-Decoding", arxiv="2505.13672", aliases=("astar",))
class AStar:
    """Expands the best partial answer by k sampled steps, until a complete answer is the best.

    A node's estimate is its cost so far, plus 1 minus its score. A scorer gives the score as a
    number from 0 to 1. Without a scorer, the score is the mean probability of the tokens of the
    last step. A step ends at an empty line.

    We could not read the paper's cost of a step, so users choose it: ``none`` searches best first,
    ``step`` prefers short answers, and ``loss`` counts how much the score has dropped. Among nodes
    with equal estimates, the deeper one goes first, and then the older one.

    If the budget of tokens ends the search, it returns the complete answer with the best score. If
    there is none, it continues the best node and returns that answer.
    """

    k: int = parameter(4, 1, 64, "steps that are sampled of a node")
    step_tokens: int = parameter(64, 1, 4096, "most tokens of a step")
    cost: str = choice("none", ("none", "step", "loss"), "what a step costs")
    weight: float = parameter(0.05, 0.0, 10.0, "of one step, for cost=step")
    budget: int = parameter(4096, 1, 1 << 20, "tokens that the search may make")
    nodes: int = parameter(256, 1, 1 << 16, "open nodes that are kept")

    def search(self, task: SearchTask) -> Search:
        order, seeds, made = count(), count(), 0
        root = _Node(0.0, 0, next(order), None, 0.0, 0.0)
        open_, whole = [root], list[_Node]()
        while open_ and made < self.budget and made + self.k <= task.tokens:
            node = heapq.heappop(open_)
            if node.branch is not None and node.branch.at_end:
                return _found([node, *_by_score(each for each in whole if each is not node)])
            starts = [
                Start(next(seeds), node.branch, self.step_tokens, ("\n\n",), not task.scorer)
                for _ in range(self.k)
            ]
            grown: list[Branch] = yield Grow(starts)
            scores: list[float] = yield Rate(grown)
            for branch, score in zip(grown, scores):
                made += branch.new
                score = _share(score, task.scorer)
                paid = {"none": 0.0, "step": self.weight, "loss": max(0.0, node.score - score)}
                cost = node.cost + paid[self.cost]
                estimate = cost + 1.0 - score
                child = _Node(estimate, node.height - 1, next(order), branch, cost, score)
                heapq.heappush(open_, child)
                whole += [child] if branch.at_end else []
            if any(branch.reason == "deadline" for branch in grown):
                break
            if len(open_) > self.nodes:
                open_ = heapq.nsmallest(self.nodes, open_)
        if whole:
            return _found(_by_score(whole))
        best = open_[0]
        if best.branch is not None and made >= task.tokens:
            return _found([best])
        finished: list[Branch] = yield Grow([Start(next(seeds), best.branch)])
        return Searched(finished[0], (), (best.score,))


class _Node(NamedTuple):
    """A node of the search. Nodes are ordered as they are expanded.

    ``height`` is minus the depth, and no two nodes share ``order``.
    """

    estimate: float
    height: int
    order: int
    branch: Branch | None
    cost: float
    score: float


def _by_score(nodes: Iterable[_Node]) -> list[_Node]:
    return sorted(nodes, key=lambda node: (-node.score, node.order))


def _found(nodes: list[_Node]) -> Searched:
    best, *others = (node.branch for node in nodes if node.branch is not None)
    return Searched(best, tuple(others), tuple(node.score for node in nodes))


def _share(score: float, given: bool) -> float:
    """Return a score as a number from 0 to 1.

    A scorer's score is returned unchanged. A mean log-probability becomes a probability.
    """
    if not given:
        return min(1.0, math.exp(score))
    if not 0.0 <= score <= 1.0:
        raise InvalidInput("scorer", score, "a-star needs scores from 0 to 1")
    return score
