"""What a strategy asks for, and what it gets: branches, and scores of them."""

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
        seed: numbers it among the branches of the search; with the request's seed it decides all
            of its draws. Branch 0 draws what the request would draw without a search.
        after: the branch that it goes on from; None is the prompt.
        max_tokens: new tokens at most; None for as many as the request may have.
        marks: texts that end it where it writes them itself, beside the request's stop texts; they
            stay in its text.
        score: whether log-probabilities of its tokens are wanted.
        decoder: a method in place of the request's.
        params: sampling parameters in place of the request's.
        forks: how many that keeps at a time; then it may not draft.
        width: outputs that it grows at the same time.
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
    """A branch, as it is now.

    Attributes:
        sequence: the engine's sequence of its new tokens; None before it has begun.
        tokens: of the output, those before the branch included; none while it runs.
        new: how many it has made itself.
        text: of the whole output, without a stop text of the request at its end.
        reason: why it ended: ``stop`` (the end of the text, or a stop text), ``length``,
            ``cancelled``, ``deadline``, or None while it runs, which has no text yet.
        at_end: it ended as the request would have, and not by a limit of its Start.
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
        enough: told the branches after each step of the engine; True ends those that still run.
            None waits for all.
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
    """What a strategy knows of the request.

    Attributes:
        params: how to sample.
        text_of: makes the text of output tokens.
        tokens: that all branches may make together.
        scorer: whether a scorer judges what a branch says; without it, Rate gives the
            log-probability of the tokens that the branch has made itself.
    """

    params: SamplingParams
    text_of: Callable[[Sequence[int]], str]
    tokens: int
    scorer: bool = False


@dataclass(frozen=True)
class Searched:
    """What a strategy has found.

    Attributes:
        best: the branch that is the answer.
        others: the other branches that may be of interest, best first.
        scores: for ``best`` and each of ``others`` what it was chosen by.
        made: tokens of all branches, where their sequences do not say it: those of forks.
    """

    best: Branch
    others: tuple[Branch, ...] = ()
    scores: tuple[float, ...] = ()
    made: int | None = None


def in_order(
    branches: Sequence[Branch], scores: Sequence[float], made: int | None = None
) -> Searched:
    """The branch with the highest score as the best; of equal ones the first."""
    order = sorted(range(len(branches)), key=lambda place: -scores[place])
    best, *others = (branches[place] for place in order)
    return Searched(best, tuple(others), tuple(scores[place] for place in order), made)


class Strategy(Protocol):
    """A strategy is a dataclass of settings with one generator; each search has a fresh object."""

    def search(self, task: SearchTask) -> Generator[Asked, Any, Searched]:
        """Yield :class:`Grow` and :class:`Rate`; return what was found."""
        ...
