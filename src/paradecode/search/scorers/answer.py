"""A scorer that knows the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import declare, text
from paradecode.search.majority import final_answer
from paradecode.search.scorers.scorer import Rated, Reads


@declare("scorer", "answer")
@dataclass
class AnswerScorer:
    """1 for a branch whose final answer is the given one, 0 for another.

    The final answer is found as ``majority`` finds it, so ``7``, ``7.0`` and "The answer is 7." are
    the same.

    When: the answer is known, and what is wanted is a way to it; or to see what a search could
    reach at best.
    """

    right: str = text(str, "the right answer")
    reads: Reads = "texts"

    def __post_init__(self) -> None:
        if not self.right.strip():
            raise InvalidInput("answer.right", self.right, "give the right answer")

    def rate(self, rated: Rated) -> Sequence[float]:
        wanted = final_answer(self.right)
        return [float(final_answer(branch.text) == wanted) for branch in rated.branches]
