"""The results for callers: a whole output, or a piece of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

from paradecode.core.errors import shown
from paradecode.core.trace import Commit, Stats, Step, TokenLogprob
from paradecode.engine.sequence import LiveSequence


@dataclass(frozen=True)
class SearchedBranch:
    """A branch of a search, which shows how the answer was found.

    Attributes:
        after: index of the branch that it continues; None means the prompt.
        text: the text that the branch itself wrote.
        tokens: number of tokens of that text.
        reason: why it ended.
        score: the scorer's score, or None if it was not scored.
        chosen: whether the answer contains the branch.
    """

    after: int | None
    text: str
    tokens: int
    reason: str
    score: float | None
    chosen: bool


@dataclass(frozen=True)
class SearchCost:
    """The cost of a search.

    Attributes:
        branches: number of branches that were started.
        tokens: number of tokens that all branches generated.
        rows: rows of the target's forwards, over all branches.
        seconds: time from its start to its end.
        scores: scores by which the completion and each of its ``alternatives`` was chosen.
        tree: every branch, in the order in which they were started.
    """

    branches: int
    tokens: int
    rows: int
    seconds: float
    scores: tuple[float, ...]
    tree: tuple[SearchedBranch, ...] = ()


@dataclass(frozen=True, repr=False)
class Completion:
    """One output.

    Attributes:
        text: the output, without the stop text or special tokens.
        token_ids: every generated token id, including the stop token.
        finish_reason: ``stop``, ``length``, ``deadline``, ``cancelled`` or ``error``.
        logprobs: one entry for each token, if they were requested.
        stats: forwards, drafts, times.
        trace: one entry for each commit.
        prompt_token_ids: the token ids that the model read.
        error: the error if ``finish_reason`` is ``error``.
        alternatives: the other outputs if ``n`` is above 1, or the other outputs of a search.
        search: the cost of the search, if one found the output.
        commits: ``text`` and ``token_ids`` in pieces, each with the forward that decided it, in the
            order of the output. A search has none.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    trace: list[Step]
    prompt_token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    error: Exception | None = None
    alternatives: tuple[Completion, ...] = ()
    search: SearchCost | None = None
    commits: tuple[Commit, ...] = ()

    def __repr__(self) -> str:
        stats = self.stats
        return f"<Completion {shown(self.text)}: {_made(stats)}, {self.finish_reason}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: text coloured by forward, and a bar for each forward."""
        made = Counter[int]()
        for commit in self.commits:
            made[commit.forward] += len(commit.tokens)
        pieces = self.commits or (Commit(0, (), self.text),)
        text = "".join(
            f'<span style="background:{_colour(commit.forward)}" title="forward {commit.forward}, '
            f'{made[commit.forward]} tokens">{escape(commit.text)}</span>'
            for commit in pieces
        )
        most = max(made.values(), default=1)
        bars = "".join(
            f'<i style="width:4px;height:{40 * count / most:.0f}px;'
            f'background:{_colour(forward, 0.8)}" '
            f'title="forward {forward}, {count} tokens"></i>'
            for forward, count in sorted(made.items())
        )
        stats, speed = self.stats, self.stats.tokens_per_second
        said = _made(stats) + (f", {speed:.0f} tokens/s" if speed else "")
        return (
            f'<div style="white-space:pre-wrap">{text}</div>'
            f'<div style="display:flex;gap:1px;align-items:flex-end;flex-wrap:wrap">{bars}</div>'
            f"<small>{said}; a colour is a forward, and a bar is as high as its tokens</small>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return every field by name, for JSON.

        ``stats`` is the result of :meth:`paradecode.core.trace.Stats.record`, and ``error`` is the
        error's text. A step of ``trace`` has its forward, tokens, counts and seconds, without the
        draft's tree.
        """
        steps = ("forward", "tokens", "accepted", "drafted", "seconds")
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "stats": self.stats.record(),
            "trace": [{name: getattr(step, name) for name in steps} for step in self.trace],
            "prompt_token_ids": self.prompt_token_ids,
            "logprobs": None if self.logprobs is None else list(map(asdict, self.logprobs)),
            "error": None if self.error is None else str(self.error),
            "alternatives": [other.to_dict() for other in self.alternatives],
            "search": None if self.search is None else asdict(self.search),
            "commits": [commit._asdict() for commit in self.commits],
        }


@dataclass(frozen=True)
class Ranked:
    """A candidate of :meth:`paradecode.LLM.rank`.

    Attributes:
        index: its index in the list of candidates.
        logprobs: log-probability of each of its tokens, given the context and the tokens before it.
    """

    index: int
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """Mean log-probability of a token. Ranking uses it, so long candidates lose nothing."""
        return self.total / len(self.logprobs)


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed output: what one or several forwards made certain.

    Attributes:
        text: new text. It may be empty while a character or a possible stop text is incomplete.
        token_ids: new tokens.
        completion: the whole output, in the last chunk.
        canvas: for a diffusion method, the decided token at each position after the output so far,
            or None for undecided positions. These tokens may still change, so they are not part of
            ``text``.
        commits: ``text`` and ``token_ids`` in pieces, each with the forward that decided it, in the
            order of the output. A search has none.
        forward: number of target forwards of the output so far.
    """

    text: str
    token_ids: list[int]
    completion: Completion | None = None
    canvas: tuple[int | None, ...] = ()
    commits: tuple[Commit, ...] = ()
    forward: int = 0


def ranked(scored: Sequence[Sequence[TokenLogprob]]) -> list[Ranked]:
    """Return the candidates with the log-probabilities of their tokens, the likeliest first."""
    found = [
        Ranked(place, tuple(entry.logprob for entry in entries))
        for place, entries in enumerate(scored)
    ]
    return sorted(found, key=lambda each: (-each.mean, each.index))


def chunk_of(sequence: LiveSequence) -> Chunk:
    """Return everything new since the last call, with the completion if the sequence has ended."""
    commits = tuple(sequence.take())
    sequence.commits += commits
    return Chunk(
        text="".join(commit.text for commit in commits),
        token_ids=[token for commit in commits for token in commit.tokens],
        completion=completion_of(sequence) if sequence.finished else None,
        canvas=() if sequence.finished else sequence.provisional,
        commits=commits,
        forward=sequence.forwards,
    )


def _made(stats: Stats) -> str:
    """Return the numbers of tokens and forwards in words."""
    counted = (stats.generated, "token"), (stats.forwards, "forward")
    return " in ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counted)


def _colour(forward: int, alpha: float = 0.3) -> str:
    """Return a forward's colour in CSS; successive forwards differ, and forward 0 has no colour."""
    return f"hsla({forward * 67 % 360},70%,50%,{alpha})" if forward else "none"


def completion_of(sequence: LiveSequence) -> Completion:
    """Return the completion of a finished sequence."""
    sequence.commits += sequence.take()
    return Completion(
        text=sequence.text.value,
        token_ids=sequence.output,
        finish_reason=sequence.finish_reason or "cancelled",
        stats=sequence.stats,
        trace=sequence.trace,
        prompt_token_ids=sequence.tokens[: sequence.prompt_length].tolist(),
        logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
        error=sequence.error,
        commits=tuple(sequence.commits),
    )


def with_alternatives(sequences: Sequence[LiveSequence]) -> Completion:
    """Return the first of one request's ``n`` outputs, with the others as its ``alternatives``."""
    first, *others = map(completion_of, sequences)
    return replace(first, alternatives=tuple(others))
