"""The interface of scorers, and the search for one: a part, a Python function, or a constraint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Network
from paradecode.methods import parts
from paradecode.search.branch import Branch

Reads = Literal["texts", "logprobs", "states"]
ScoreFunction = Callable[[str, Sequence[str]], Sequence[float]]
"""(text of the prompt, texts of whole or partial outputs) -> a finite number for each output."""

Scorer = Union[str, ScoreFunction, "BranchScorer"]
"""A scorer as callers give it: a spec such as ``likelihood(norm=sum)``, a function, or a part."""


@dataclass(frozen=True)
class Rated:
    """The branches that a scorer must score.

    Attributes:
        prompt, prompt_tokens: the prompt as text, and as token ids.
        outputs: float32 [branches, width], outputs of the scorer's network; without a network the
            array is empty.
    """

    prompt: str
    prompt_tokens: NDArray[np.int32]
    branches: Sequence[Branch]
    outputs: NDArray[np.float32]


class BranchScorer(Protocol):
    """A part of the kind ``scorer``: a dataclass of settings, which is made once for each search.

    Attributes:
        reads: the input that the scorer needs: ``texts`` of the branches, ``logprobs`` of their
            tokens, or ``states``, the outputs of ``network`` for the target's last hidden state of
            each branch.
        network: a network whose input ``x`` is the hidden state before the final norm; only for
            ``states``.
    """

    reads: Reads

    def rate(self, rated: Rated) -> Sequence[float]:
        """Return a finite number for each branch; higher is better.

        An exception ends the search.
        """


class ReadsStates(BranchScorer, Protocol):
    """A scorer that reads hidden states through its network."""

    network: Network


@dataclass
class FunctionScorer:
    """A Python function as a scorer."""

    function: ScoreFunction
    reads: Reads = "texts"

    def rate(self, rated: Rated) -> Sequence[float]:
        return self.function(rated.prompt, [branch.text for branch in rated.branches])


def scorers() -> Mapping[str, parts.Part]:
    """Return all scorers by name: built-in ones, and scorers that the program has registered."""
    parts.load_room(__name__.rpartition(".")[0])
    return parts.known("scorer")


def find_scorer(given: Any, trusted: bool = True) -> BranchScorer:
    """Return the scorer that a caller gave; None gives the mean log-probability of a token.

    Args:
        trusted: False if ``given`` comes from a request, which may not name files of this machine.

    Raises:
        InvalidInput: if a name or setting is unknown, or a setting is out of bounds.
    """
    if given is None or isinstance(given, str):
        scorers()
        found, settings = parts.read("scorer", "scorer", given or "likelihood", trusted)
        return cast(BranchScorer, found.build(**settings))
    if hasattr(given, "rate"):
        return cast(BranchScorer, given)
    if callable(given):
        return FunctionScorer(given)
    fix = "give a function of a prompt and outputs, or a text such as 'likelihood(norm=sum)'"
    raise InvalidInput("scorer", given, fix)


# A scorer that measures how far a branch follows a constraint: a JSON schema, regex or grammar.


@dataclass
class Follows:
    """Scores 1 for a branch that satisfies a constraint completely, else at most 0.5.

    The lower score is half of the share of tokens before the first forbidden token. So a complete
    answer beats every other.

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
