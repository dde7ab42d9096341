"""The model's own log-probability of a branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paradecode.methods.parts import choice, declare
from paradecode.search.scorers.scorer import Rated, Reads


@declare("scorer", "likelihood")
@dataclass
class LikelihoodScorer:
    """The log-probability that the model itself gives to the tokens of a branch.

    In a partial answer only the newest tokens count: those behind the branch that it continues.

    When: nothing better is known. ``sum`` prefers short answers.
    """

    norm: str = choice("mean", ("mean", "sum"), "of a token, or of all together")
    reads: Reads = "logprobs"

    def rate(self, rated: Rated) -> Sequence[float]:
        if self.norm == "sum":
            return [branch.logprob for branch in rated.branches]
        return [branch.logprob / max(1, branch.new) for branch in rated.branches]
