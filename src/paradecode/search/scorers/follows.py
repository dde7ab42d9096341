"""A scorer by how far a branch follows a constraint: a JSON schema, a regex, a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paradecode.core.constraint import Constraint
from paradecode.search.scorers.scorer import Rated, Reads


@dataclass
class Follows:
    """1 for a branch that meets a constraint as a whole, else half of the share of its tokens that
    the constraint allows. A whole answer therefore beats every other.

    Args:
        ends: token ids that end an output.
    """

    constraint: Constraint
    ends: Sequence[int]
    reads: Reads = "texts"

    def rate(self, rated: Rated) -> Sequence[float]:
        return [self._share(branch.tokens) for branch in rated.branches]

    def _share(self, tokens: Sequence[int]) -> float:
        matcher = self.constraint.follow(self.ends)
        said = [token for token in tokens if token not in self.ends]
        allowed = matcher.possible(said)
        if allowed < len(said):
            return 0.5 * allowed / len(said)
        ended = matcher.complete(said) or any(matcher.allows(said, end) for end in self.ends)
        return 1.0 if ended else 0.5
