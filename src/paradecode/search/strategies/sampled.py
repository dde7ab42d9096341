"""Searches that sample whole outputs: best of n, self-consistency and first finish."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.branch import Branch, Grow, Rate, Search, Searched, SearchTask, Start

MARKED = re.compile(
    r"\\boxed\{([^{}]*)\}|####\s{0,8}([^\n]+)|answer(?:\s{1,8}is)?\s{0,8}:?\s{1,8}([^\n]+)", re.I
)
"""Matches marked final answers.

Spaces are bounded, so that matching takes linear time in any text.
"""
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    """Return the final answer of a text, normalised so that equal answers have equal texts.

    It is the last text in a box, after ``####`` or after "answer", or the number in that text if
    there is one. If the text marks no answer in this way, it is the last number, or else the last
    line.
    """
    marked = [next(filter(None, found), "") for found in MARKED.findall(text)]
    said = marked[-1] if marked else text
    numbers = NUMBER.findall(said)
    if numbers:
        value = numbers[0 if marked else -1].replace(",", "").lstrip("+")
        return value.rstrip("0").rstrip(".") if "." in value else value
    lines = said.strip().splitlines() or [""]
    return " ".join(lines[-1].lower().split()).rstrip(".!")


@declare(
    "search", "majority", aliases=("self-consistency",),
    paper="Wang et al. 2022, self-consistency", arxiv="2203.11171",
)  # fmt: skip
class Majority:
    """Samples n outputs at once, and returns one with the most frequent final answer.

    The answer of an output is found by :func:`final_answer`. Weighted votes count each output by
    the exponential of its score: the scorer's score, or the mean log-probability. Outputs that were
    cut at the length limit vote as well. Among the outputs with the winning answer, the one with
    the highest score is returned, or the earliest without weights. If answers have equal votes, the
    one that was found first wins.
    """

    n: int = parameter(8, 1, 64, "samples")
    votes: str = choice("equal", ("equal", "weighted"), "how outputs count")

    def search(self, task: SearchTask) -> Search:
        weighted = self.votes == "weighted"
        starts = [Start(seed, score=weighted and not task.scorer) for seed in range(self.n)]
        grown: list[Branch] = yield Grow(starts)
        scores = [0.0] * self.n
        if weighted:
            scores = yield Rate(grown)
        answers = [final_answer(branch.text) for branch in grown]
        votes: dict[str, float] = defaultdict(float)
        for answer, score in zip(answers, scores):
            votes[answer] += math.exp(score - max(scores))
        order = sorted(range(self.n), key=lambda place: (-votes[answers[place]], -scores[place]))
        best, *others = (grown[place] for place in order)
        return Searched(best, tuple(others), tuple(votes[answers[place]] for place in order))


# Best of n: draw several samples, and take the one with the highest score.


@declare("search", "best-of", paper="Stiennon et al. 2020", arxiv="2009.01325")
class BestOf:
    """Samples n outputs at once, and returns the one with the highest score.

    Without a scorer, the score is the mean log-probability of an output's tokens. For equal scores,
    the earlier branch wins.

    When: a scorer is at hand that tells good answers from bad ones.
    """

    n: int = parameter(4, 1, 64, "samples")

    def search(self, task: SearchTask) -> Search:
        starts = [Start(seed, score=not task.scorer) for seed in range(self.n)]
        grown: list[Branch] = yield Grow(starts)
        scores: list[float] = yield Rate(grown)
        return Searched.in_order(grown, scores)


# First Finish Search: draw several samples. The first one that ends is the answer.


@declare(
    "search", "ffs", aliases=("first-finish",), paper="First Finish Search", arxiv="2505.18149"
)
class FirstFinish:
    """Samples n outputs at once, returns the first one that ends, and cancels the others.

    Short outputs of reasoning models are often right more frequently than long ones. If they are
    not, this search does harm. An output that is cut at its length limit has not ended.

    ``keep`` waits until this many outputs have ended. ``pick=last`` returns the last of these (Last
    Finish Search), and ``pick=vote`` returns the first one with the most frequent answer (see
    ``majority``).

    With drafts, the output that ends in the first step of the engine need not be the shortest.
    ``by=tokens`` continues until no other output can be shorter, so the result is the same as with
    plain decoding. If several outputs end in one step, the shorter one wins, and then the earlier
    branch.
    """

    n: int = parameter(4, 1, 64, "samples")
    keep: int = parameter(1, 1, 64, "how many are to end")
    pick: str = choice("first", ("first", "last", "vote"), "which of these is returned")
    by: str = choice("tokens", ("tokens", "steps"), "what first means")

    def __post_init__(self) -> None:
        if self.keep > self.n:
            raise InvalidInput("ffs.keep", self.keep, f"give at most n, {self.n}")

    def search(self, task: SearchTask) -> Search:
        order: list[int] = []

        def enough(branches: Sequence[Branch]) -> bool:
            ended = [p for p, b in enumerate(branches) if b.reason == "stop" and p not in order]
            order.extend(sorted(ended, key=lambda place: (branches[place].new, place)))
            if self.by == "tokens":
                order.sort(key=lambda place: (branches[place].new, place))
            if len(order) < self.keep:
                return False
            if self.by == "steps":
                return True
            bar = branches[order[self.keep - 1]].new
            return all(b.reason is not None or b.new >= bar for b in branches)

        starts = [Start(seed) for seed in range(self.n)]
        grown: list[Branch] = yield Grow(starts, enough)
        enough(grown)
        # If no output has ended, the result is the first branch, which was cut at its length limit.
        kept = order[: self.keep] or [0]
        chosen = kept[-1 if self.pick == "last" else 0]
        if self.pick == "vote":
            answers = [final_answer(grown[place].text) for place in kept]
            chosen = max(zip(kept, answers), key=lambda one: answers.count(one[1]))[0]
        rest = [place for place in [*order, *range(self.n)] if place != chosen]
        others = tuple(grown[place] for place in dict.fromkeys(rest))
        return Searched(
            grown[chosen], others, tuple(-float(b.new) for b in (grown[chosen], *others))
        )
