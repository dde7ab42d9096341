"""The requests of a strategy, and the replies: branches, and scores of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

from paradecode.core.decoder import Decoder
from paradecode.core.sampling import SamplingParams
from paradecode.engine.sequence import LiveSequence


@dataclass(frozen=True)
class Start:
    """A branch to begin.

    Attributes:
        seed: number of the branch in the search; with the request's seed it decides all of its
            draws. Branch 0 draws what the request would draw without a search.
        after: the branch that it continues; None is the prompt.
        max_tokens: the most new tokens; None for as many as the request may have.
        marks: texts that end the branch if it writes them itself, beside the request's stop texts;
            they stay in its text.
        score: whether log-probabilities of its tokens are wanted.
        decoder: a method in place of the request's.
        params: sampling parameters in place of the request's.
        forks: number of forks that the method keeps at a time; if any, it may not draft.
        width: number of outputs that it grows at the same time.
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
        sequence: the engine's sequence of its new tokens; None before it has begun.
        tokens: tokens of the output, with those before the branch; empty while it runs.
        new: number of tokens that the branch itself has made.
        text: text of the whole output, without a stop text of the request at its end; empty
            while it runs.
        reason: why it ended: ``stop`` (the end of the text, or a stop text), ``length``,
            ``cancelled``, ``deadline``, or None while it runs.
        at_end: whether it ended as the request would have, and not by a limit of its Start.
        logprob: summed log-probability of its new tokens, if that was wanted.
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
    """Ask for branches; the reply is a list of :class:`Branch`, in the order of ``starts``.

    Attributes:
        enough: called with the branches after each step of the engine; True ends those that still
            run. None waits for all.
    """

    starts: Sequence[Start]
    enough: Callable[[Sequence[Branch]], bool] | None = None


@dataclass(frozen=True, eq=False)
class Rate:
    """Ask for scores of branches, higher is better; the reply is a list of floats."""

    branches: Sequence[Branch]


Asked = Union[Grow, Rate]


@dataclass(frozen=True)
class SearchTask:
    """What a strategy knows about the request.

    Attributes:
        params: sampling parameters.
        text_of: makes the text of output tokens.
        tokens: the most tokens that all branches may make together.
        scorer: whether there is a scorer. Without one, Rate gives the log-probability of the
            tokens that the branch itself has made.
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
        others: the other branches that may be of interest, best first.
        scores: the scores of ``best`` and of each of ``others``, by which they were chosen.
        made: tokens of all branches, if these are forks, whose sequences do not count them.
    """

    best: Branch
    others: tuple[Branch, ...] = ()
    scores: tuple[float, ...] = ()
    made: int | None = None

    @classmethod
    def in_order(
        cls, branches: Sequence[Branch], scores: Sequence[float], made: int | None = None
    ) -> Searched:
        """The result with the highest score as the best branch; of equal scores, the first."""
        order = sorted(range(len(branches)), key=lambda place: -scores[place])
        best, *others = (branches[place] for place in order)
        return cls(best, tuple(others), tuple(scores[place] for place in order), made)


Search = Generator[Asked, Any, Searched]
"""What a strategy runs: it yields requests and returns what it has found."""


class Strategy(Protocol):
    """A strategy is a dataclass of settings with one generator; each search has a fresh object."""

    def search(self, task: SearchTask) -> Search:
        """Yield :class:`Grow` and :class:`Rate`; return what was found."""
