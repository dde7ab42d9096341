"""The requests that a strategy yields, and their replies: branches, and scores of branches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

from paradecode.core.decoder import Decoder
from paradecode.core.sampling import SamplingParams

if TYPE_CHECKING:
    from paradecode.engine.sequence import LiveSequence


@dataclass(frozen=True)
class Start:
    """A branch that a strategy wants to begin.

    Attributes:
        seed: number of the branch in the search. Together with the request's seed, it determines
            all random numbers of the branch. Branch 0 gets the same random numbers as the request
            without a search.
        after: the branch that this branch continues; None to continue the prompt.
        max_tokens: the most new tokens; None for the request's own limit.
        marks: texts that end the branch if the branch itself writes them, besides the request's
            stop texts. Unlike stop texts they stay in the text.
        score: True if the log-probabilities of the branch's tokens are wanted.
        decoder: a method that replaces the request's method.
        params: sampling parameters that replace the request's.
        forks: number of forks that the method has at a time. With forks, the method may not draft.
        width: number of outputs that the branch grows at the same time.
    """

    seed: int
    after: Branch | None = None
    max_tokens: int | None = None
    marks: tuple[str, ...] = ()
    score: bool = False
    decoder: Callable[[], Decoder] | None = None
    params: SamplingParams | None = None
    forks: int = 0
    width: int = 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the output before this branch begins."""
        return () if self.after is None else self.after.tokens


@dataclass(frozen=True)
class Branch:
    """The present state of a branch.

    Attributes:
        sequence: the engine's sequence that decodes the new tokens; None before the branch has
            begun.
        tokens: tokens of the output, including the tokens before the branch; empty while it runs.
        new: number of tokens of this branch, without the tokens before it.
        text: text of the whole output, without the stop text that ended it; empty while it runs.
        reason: why the branch ended: ``stop`` (a stop token, a stop text or one of ``marks``),
            ``length``, ``cancelled``, ``deadline``, or None while it runs.
        at_end: True if it ended as the request would have ended, and not by a limit of ``start``.
        logprob: summed log-probability of the new tokens, if it was wanted.
    """

    start: Start
    sequence: LiveSequence | None
    tokens: tuple[int, ...]
    new: int
    text: str
    reason: str | None
    at_end: bool
    logprob: float = 0.0


@dataclass(frozen=True, eq=False)
class Grow:
    """Asks for branches. The reply is a list of :class:`Branch` in the order of ``starts``.

    Attributes:
        enough: called with the branches after each step of the engine. If it returns True, the
            branches that still run are ended. None waits for all branches.
    """

    starts: Sequence[Start]
    enough: Callable[[Sequence[Branch]], bool] | None = None


@dataclass(frozen=True, eq=False)
class Rate:
    """Asks for scores of branches, where higher is better. The reply is a list of floats."""

    branches: Sequence[Branch]


Asked = Union[Grow, Rate]


@dataclass(frozen=True)
class SearchTask:
    """A strategy's information about the request.

    Attributes:
        params: sampling parameters.
        text_of: returns the text of output tokens.
        tokens: the most tokens that all branches may have together.
        scorer: True if there is a scorer. Without one, the scores of :class:`Rate` come from the
            log-probabilities of a branch's own tokens.
    """

    params: SamplingParams
    text_of: Callable[[Sequence[int]], str]
    tokens: int
    scorer: bool = False


@dataclass(frozen=True)
class Searched:
    """The result of a strategy.

    Attributes:
        best: the branch that is the answer.
        others: other branches that may be of interest, the best first.
        scores: the scores of ``best`` and of each of ``others``, by which they were ordered.
        made: number of tokens of all branches. Given only if the branches are forks, because forks
            are not counted elsewhere.
    """

    best: Branch
    others: tuple[Branch, ...] = ()
    scores: tuple[float, ...] = ()
    made: int | None = None

    @classmethod
    def in_order(
        cls, branches: Sequence[Branch], scores: Sequence[float], made: int | None = None
    ) -> Searched:
        """Return the result with branches ordered by score, the highest first.

        Among equal scores the first branch comes first.
        """
        order = sorted(range(len(branches)), key=lambda place: -scores[place])
        best, *others = (branches[place] for place in order)
        return cls(best, tuple(others), tuple(scores[place] for place in order), made)


Search = Generator[Asked, Any, Searched]
"""The generator that a strategy runs. It yields requests, and returns its result."""


class Strategy(Protocol):
    """A strategy is a dataclass of settings with one generator. Each search uses a new object."""

    def search(self, task: SearchTask) -> Search:
        """Yield :class:`Grow` and :class:`Rate`, and return the result."""
