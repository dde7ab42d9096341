"""Messages that answer a :class:`~paradecode.serve.wire.requests.Generate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import Field, PlainValidator

from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode.core.trace import Commit, Stats
from paradecode.serve.wire.fields import *

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}
"""HTTP status -> type of the error. Every other status is an ``invalid_request_error``."""


def _stats(value: Any) -> Stats:
    """Check the statistics of an output: no number may be too large for a counter."""
    stats: Stats = build(Stats, value, "stats")
    for name, found in vars(stats).items():
        if max(found if isinstance(found, tuple) else (found,), default=0) >= 1 << 62:
            raise InvalidInput(f"stats.{name}", found, "give numbers below 2^62")
    return stats


@dataclass(frozen=True, kw_only=True)
class Accepted(OneRequest):
    """The request is in the worker's queue. This message comes before the request's chunks.

    Attributes:
        resumed: whether the output continues after what another worker has sent.
        thinks: whether the template opens a block of reasoning, in which the output begins.
    """

    prompt_tokens: Count
    resumed: Flag = False
    thinks: Flag = False


@dataclass(frozen=True, kw_only=True)
class WireScores(WireMessage):
    """Log-probabilities under the model's own distribution, stored in columns.

    Each position has an entry for its own token, and then entries for the most likely tokens.

    Attributes:
        sizes: number of entries of each position, at least 1.
        tokens, logprobs: columns with one value for each entry.
        spelled: the bytes of each entry's token, where each byte is one character.
    """

    sizes: Annotated[list[Size], Field(max_length=MAX_LIST, fail_fast=True)]
    tokens: Tokens
    logprobs: Annotated[list[Logprob], Field(max_length=MAX_LIST, fail_fast=True)]
    spelled: Texts

    def __post_init__(self) -> None:
        lengths = {len(self.tokens), len(self.logprobs), len(self.spelled), sum(self.sizes)}
        if len(lengths) > 1:
            raise InvalidInput("logprobs", sorted(lengths), "give columns of one length")
        if not all(spelled.isascii() or max(spelled) < "\u0100" for spelled in self.spelled):
            raise InvalidInput("logprobs.spelled", "a character", "give one below 256 for a byte")

    def behind(self, positions: int) -> WireScores:
        """Return the scores without those of the first ``positions`` positions."""
        start = sum(self.sizes[:positions])
        return WireScores(
            sizes=self.sizes[positions:], tokens=self.tokens[start:],
            logprobs=self.logprobs[start:], spelled=self.spelled[start:],
        )  # fmt: skip


class WireCommit(NamedTuple):
    """Counts of what one forward decided in a chunk, as in :class:`paradecode.core.trace.Commit`.

    Attributes:
        forward: number of the forward, counted from 1 for each output.
        tokens: number of tokens.
        characters: number of characters of the text.
    """

    forward: Count
    tokens: Count
    characters: Count


Commits = Annotated[list[WireCommit], Field(max_length=MAX_LIST, fail_fast=True)]


@dataclass(frozen=True, kw_only=True)
class OutputChunk(OneRequest):
    """A piece of an output, which one or several forwards decided.

    Attributes:
        index: index of the output, among the request's ``n``.
        text: new text. It may be empty, because a character or a stop text may be incomplete.
        tokens: the committed token ids. Control tokens and stop texts are in it, but not in
            ``text``.
        forward: number of the target's forwards for the output so far.
        commits: what each forward decided. Together the commits cover ``tokens`` and ``text``.
            Empty for a prompt that is read, and for a search.
        logprobs: scores with one position for each token, if the request wants them.
        canvas: for a diffusion model, the text of each position after the output, or None if it is
            masked; only with ``provisional``.
        embedding: the embedding of a prompt, if the request wants it.
        ranked: log-probabilities of the tokens of each candidate.
    """

    index: Index
    text: Text
    tokens: Tokens
    forward: Count
    logprobs: WireScores | None = None
    canvas: Canvas | None = None
    embedding: Embedding | None = None
    ranked: Annotated[list[Logprobs], Field(max_length=1 << 10, fail_fast=True)] | None = None
    commits: Commits = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.commits:
            found = tuple(map(sum, zip(*(commit[1:] for commit in self.commits))))
            if found != (wanted := (len(self.tokens), len(self.text))):
                fix = f"they are of {wanted[0]} tokens and {wanted[1]} characters"
                raise InvalidInput("commits", found, fix)

    def parts(self) -> Iterator[Commit]:
        """Yield the commits with their tokens and texts."""
        token = character = 0
        for forward, tokens, characters in self.commits:
            ends = token + tokens, character + characters
            ids, text = self.tokens[token : ends[0]], self.text[character : ends[1]]
            yield Commit(forward, tuple(ids), text)
            token, character = ends

    def behind(self, tokens: int, characters: int) -> OutputChunk:
        """Return the chunk without its first ``tokens`` tokens and ``characters`` characters."""
        left, kept = [tokens, characters], []
        for forward, *sizes in self.commits:
            cut = [min(size, most) for size, most in zip(sizes, left, strict=True)]
            left = [most - gone for most, gone in zip(left, cut, strict=True)]
            commit = WireCommit(forward, *(size - gone for size, gone in zip(sizes, cut)))
            kept += [commit] if any(commit[1:]) else []
        scores = None if self.logprobs is None else self.logprobs.behind(tokens)
        return replace(self, tokens=self.tokens[tokens:], text=self.text[characters:],
                       logprobs=scores, commits=kept)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BranchNews(OneRequest):
    """The progress of a branch of a search since the last report.

    Attributes:
        index: index of the output, always 0.
        branch: number of the branch.
        after: number of the branch that this branch continues; None if it continues the prompt.
        text: new text.
        tokens: number of tokens of this branch, without those of the branch that it continues.
        reason: reason why the branch ended.
        score: the scorer's score, or None while it is unknown.
    """

    index: Index = 0
    branch: Index
    after: Index | None = None
    text: Text = ""
    tokens: Count = 0
    reason: Short | None = None
    score: Annotated[float, Field(strict=True)] | None = None


@dataclass(frozen=True, kw_only=True)
class WireSearch(WireMessage):
    """The cost of a search over all its branches, and the score of this output."""

    branches: Count
    tokens: Count
    rows: Count
    seconds: Seconds
    score: Annotated[float, Field(strict=True)] | None = None


@dataclass(frozen=True, kw_only=True)
class Done(OneRequest):
    """An output has ended. With ``deadline`` or ``cancelled`` it may be incomplete.

    Attributes:
        index: index of the output, among the request's ``n``.
        method: spec of the method that decoded the output.
        stats: counts and times of the output.
        stopped: the stop text that ended the output.
        predicted: whether the request had a ``prediction``, from which drafts came.
        diffusion_steps: number of denoising steps of a canvas.
        time_to_first_token: seconds from arrival at the worker; None without a token.
        search: the cost of the search that found the output, or None without a search.
        reasoning: number of tokens between the marks of the output's reasoning.
    """

    index: Index
    finish_reason: Literal["stop", "length", "deadline", "cancelled"]
    method: Short
    stats: Annotated[Stats, PlainValidator(_stats)]
    stopped: Short | None = None
    predicted: Flag = False
    diffusion_steps: Count = 0
    time_to_first_token: Seconds | None = None
    search: WireSearch | None = None
    reasoning: Count = 0


@dataclass(frozen=True, kw_only=True)
class Failure(OneRequest):
    """The request has failed and has ended. ``status`` is an HTTP status.

    Attributes:
        param: name of the wrong field.
        code: a word by which programs tell the error; None if the status is enough.
        retry_after: seconds after which the client should try again, for 429 and 503.
    """

    status: Literal[400, 404, 413, 422, 429, 500, 503]
    message: Short
    param: Name | None = None
    code: Name | None = None
    retry_after: Seconds | None = None

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "invalid_request_error")


OutputEvent = Union[Accepted, OutputChunk, BranchNews, Done, Failure]
"""An event about a :class:`Generate`."""
