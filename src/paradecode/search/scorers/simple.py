"""Scorers that compute little: the model's own log-probability, and a known right answer."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.core.errors import InvalidInput
from paradecode.methods.parts import choice, declare, text
from paradecode.search.scorers.scorer import Rated, Reads
from paradecode.search.strategies.sampled import final_answer


@declare("scorer", "likelihood")
class LikelihoodScorer:
    """The log-probability that the model itself gives to the tokens of a branch.

    For a partial answer only its newest tokens count, not the tokens of the branch that it
    continues.

    When: nothing better is known. ``sum`` prefers short answers.
    """

    norm: str = choice("mean", ("mean", "sum"), "of a token, or of all together")
    reads: Reads = "logprobs"

    def rate(self, rated: Rated) -> Sequence[float]:
        if self.norm == "sum":
            return [branch.logprob for branch in rated.branches]
        return [branch.logprob / max(1, branch.new) for branch in rated.branches]


# A scorer that knows the right answer.


@declare("scorer", "answer")
class AnswerScorer:
    """Scores 1 for a branch with the given final answer, and 0 for any other branch.

    The final answer is found as in ``majority``, so ``7``, ``7.0`` and "The answer is 7." are the
    same.

    When: the answer is known and a way to it is wanted, or to measure the best result that a search
    could reach.
    """

    right: str = text(str, "the right answer")
    reads: Reads = "texts"

    def __post_init__(self) -> None:
        if not self.right.strip():
            raise InvalidInput("answer.right", self.right, "give the right answer")

    def rate(self, rated: Rated) -> Sequence[float]:
        wanted = final_answer(self.right)
        return [float(final_answer(branch.text) == wanted) for branch in rated.branches]
