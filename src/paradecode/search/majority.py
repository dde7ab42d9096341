"""Self-consistency: several samples, and the answer in which the largest number of them end."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.branch import (
    Asked,
    Branch,
    Grow,
    Rate,
    Searched,
    SearchTask,
    Start,
)

MARKED = re.compile(
    r"\\boxed\{([^{}]*)\}|####\s{0,8}([^\n]+)|answer(?:\s{1,8}is)?\s{0,8}:?\s{1,8}([^\n]+)", re.I
)
"""Patterns of final answers. Spaces are bounded, so that a search takes linear time in any text."""
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    """The final answer of a text, in a form that equal answers share.

    It is the last text in a box, behind ``####`` or behind "answer", or the number in that text if
    there is one; else the last number; else the last line.
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
@dataclass
class Majority:
    """Samples n outputs at once and returns one with the answer that most of them end in.

    The answer of an output is found by :func:`final_answer`. Weighted votes count each output by
    the exponential of its score: the scorer's, or the mean log-probability. Outputs that were cut
    by the length vote as well. Among the outputs with the winning answer, the one with the highest
    score is returned (without weights the earliest). Of answers with equal votes, the one that was
    found first wins.
    """

    n: int = parameter(8, 1, 64, "samples")
    votes: str = choice("equal", ("equal", "weighted"), "how outputs count")

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
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
