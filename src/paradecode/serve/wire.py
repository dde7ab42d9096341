"""Messages between the server's front and its workers: one JSON object a line, checked by pydantic.

The front and the engine are different processes, and neither trusts what the other writes: a line
becomes one of the dataclasses below or is refused with an error that names the field. ``REQUESTS``
go to a worker, ``EVENTS`` come back. A request is complete when ``Done`` was sent for each of its
``n`` outputs, or ``Failure`` once.

Constructing a message checks nothing; :mod:`paradecode.serve.lines` checks what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union

from pydantic import ConfigDict, Field, PlainValidator

from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode.core.trace import Commit, Stats

MAX_ID = 128
MAX_TEXT = 1 << 23
MAX_LIST = 1 << 20
WORKER = "worker"
"""The id in a failure of the worker itself, when it could not load its model or stops."""

LEAST_LOGPROB = -9999.0
"""Number that replaces minus infinity, which JSON cannot write."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}
"""HTTP status -> type of the error; every other status is an ``invalid_request_error``."""

# Strict types: no number from a text, no boolean as a number. A list ends at its first bad entry.
Name = Annotated[str, Field(strict=True, max_length=4096)]
Short = Annotated[str, Field(strict=True, max_length=1 << 16)]
Text = Annotated[str, Field(strict=True, max_length=MAX_TEXT)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
Index = Annotated[int, Field(strict=True, ge=0, lt=1 << 16)]
Token = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Size = Annotated[int, Field(strict=True, ge=1, le=65)]
Logprob = Annotated[float, Field(strict=True, ge=LEAST_LOGPROB, le=1.0)]
Logprobs = Annotated[list[Logprob], Field(max_length=1 << 10, fail_fast=True)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e9)]
Flag = Annotated[bool, Field(strict=True)]
Tokens = Annotated[list[Token], Field(max_length=MAX_LIST, fail_fast=True)]
Texts = Annotated[list[Short], Field(max_length=MAX_LIST, fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(max_length=1 << 12, fail_fast=True)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=1 << 10, fail_fast=True)]
Embedding = Annotated[
    list[Annotated[float, Field(strict=True)]], Field(max_length=1 << 16, fail_fast=True)
]
Hashes = Annotated[list[Name], Field(max_length=MAX_LIST, fail_fast=True)]
Canvas = Annotated[list[Short | None], Field(max_length=MAX_LIST, fail_fast=True)]
ConstraintType = Literal["json_schema", "json_object", "regex", "lark", "choice", "python"]


def _stats(value: Any) -> Stats:
    """Check statistics: no number may be one that a counter could not take."""
    stats: Stats = build(Stats, value, "stats")
    for name, found in vars(stats).items():
        if max(found if isinstance(found, tuple) else (found,), default=0) >= 1 << 62:
            raise InvalidInput(f"stats.{name}", found, "give numbers below 2^62")
    return stats


@dataclass(frozen=True, kw_only=True)
class WireMessage:
    """Base class of messages, which refuse unknown fields and numbers that are not finite."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class OneRequest(WireMessage):
    """A message about one request, which ``id`` names.

    Attributes:
        id: chosen by the sender of the request, unique among its live requests.
    """

    id: Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID)]


@dataclass(frozen=True, kw_only=True)
class PromptInput(WireMessage):
    """The input of the model: exactly one of ``text``, ``tokens`` and ``messages``.

    Attributes:
        text: raw text; control tokens in it count.
        tokens: token ids.
        messages: a conversation, for the model's chat template, which reads ``tools`` and
            ``variables`` as well.
        begun: the beginning of the answer to ``messages``; the output continues it.
    """

    text: Text | None = None
    tokens: Tokens | None = None
    messages: Messages | None = None
    begun: Text | None = None
    tools: Tools | None = None
    variables: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [self.text is not None, self.tokens is not None, self.messages is not None]
        if sum(given) != 1:
            raise InvalidInput("prompt", sum(given), "give one of text, tokens and messages")
        if self.tools is not None and self.messages is None:
            raise InvalidInput("prompt.tools", len(self.tools), "tools need messages")
        if self.begun is not None and self.messages is None:
            raise InvalidInput("prompt.begun", self.begun, "an answer needs messages")


@dataclass(frozen=True, kw_only=True)
class ConstraintSpec(WireMessage):
    """A constraint on the output; the constraint itself checks ``value``."""

    type: ConstraintType
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class SearchSpec(WireMessage):
    """A search over many branches for one prompt; the ``n`` best are the request's outputs.

    Attributes:
        strategy: spec of the strategy, which may not name files.
        scorer: spec of the scorer, which may not name files; None is the worker's own.
        branches: the most branches at a time.
        tokens: the most tokens of all branches together.
        shows: whether :class:`BranchNews` are wanted.
    """

    strategy: Short
    scorer: Short | None = None
    branches: Annotated[int, Field(strict=True, ge=1, le=64)] = 64
    tokens: Annotated[int, Field(strict=True, ge=1, lt=1 << 31)] = 1 << 20
    shows: Flag = False


@dataclass(frozen=True, kw_only=True)
class Generate(OneRequest):
    """Ask for ``n`` outputs of one prompt.

    Attributes:
        sampling: fields of ``SamplingParams``; without ``max_tokens`` the worker chooses.
        decoder: None is the model's default of this server (with a ``prediction``,
            ``predicted-output``), ``none`` plain decoding, else a spec or a mapping with
            ``method``, which may not name files.
        prediction: what the output will probably be.
        salt: requests with different salts share nothing.
        key: who asks; waiting requests of different keys take turns.
        priority: smaller goes first.
        deadline: seconds from arrival after which the request ends with what it has.
        provisional: whether chunks also show the undecided canvas of a diffusion model.
        resume: for each output what a dead worker has sent, or None if that was the whole output.
            The output continues it if the method decodes from left to right.
        reads: what to read of the prompt, if nothing is generated. One chunk then has the
            prompt's ``tokens``, and either their ``logprobs`` (0 for the first token), or its
            ``embedding``, or in ``ranked`` the scores of its ``candidates``.
        top: number of best tokens to report beside each of the prompt's.
        candidates: continuations of the prompt, texts or token ids.
        search: how outputs are found, if each is not one sample.
    """

    prompt: PromptInput
    sampling: dict[str, Any]
    decoder: Text | dict[str, Any] | None = None
    prediction: Text | None = None
    salt: Annotated[str, Field(strict=True, max_length=256)] = ""
    key: Annotated[str, Field(strict=True, max_length=256)] = ""
    priority: Annotated[int, Field(strict=True, ge=-(1 << 31), lt=1 << 31)] = 0
    deadline: Seconds | None = None
    constraint: ConstraintSpec | None = None
    provisional: Flag = False
    resume: Annotated[list[Tokens | None], Field(max_length=1 << 12, fail_fast=True)] | None = None
    reads: Literal["logprobs", "embedding", "candidates"] | None = None
    top: Annotated[int, Field(strict=True, ge=0, le=64)] = 0
    candidates: Annotated[list[Text | Tokens], Field(max_length=1 << 10, fail_fast=True)] = field(
        default_factory=list
    )
    search: SearchSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Cancel(OneRequest):
    """End a request now; its outputs are reported as ``cancelled``. Unknown ids are ignored."""


@dataclass(frozen=True, kw_only=True)
class Tokenize(OneRequest):
    """Ask for a prompt's token ids; the answer is a :class:`TokenizedPrompt`."""

    prompt: PromptInput


@dataclass(frozen=True, kw_only=True)
class Detokenize(OneRequest):
    """Ask for the text of token ids; the answer is a :class:`DecodedText`."""

    tokens: Tokens


@dataclass(frozen=True, kw_only=True)
class AskStats(OneRequest):
    """Ask for statistics; the answer is a :class:`WorkerStats`."""


@dataclass(frozen=True, kw_only=True)
class AskBlocks(OneRequest):
    """Ask for cached blocks; the answer is a :class:`CachedBlocks` with the changes since its
    ``next``, or with all blocks."""

    since: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Drain(WireMessage):
    """Tell the worker to accept nothing more, to finish its requests, and then to exit."""


@dataclass(frozen=True, kw_only=True)
class Ready(WireMessage):
    """The worker has loaded its model. ``decoder`` is the spec for requests without one.
    ``tools`` says whether the chat template shows tools. ``fim`` are the tokens in front of a
    prefix, a suffix and the middle, of a model that fills in. Workers with the same ``bits``
    compute the same bits."""

    model: Name
    families: Annotated[list[Name], Field(max_length=8)]
    context_length: Count
    vocab_size: Count
    decoder: Short
    draft_model: Name | None
    chat: Flag
    tools: Flag = False
    fim: Annotated[list[Name], Field(max_length=3)] = field(default_factory=list)
    bits: Name = ""


@dataclass(frozen=True, kw_only=True)
class Accepted(OneRequest):
    """The request is in the worker's queue; this comes before its chunks. ``resumed`` says that
    it goes on behind what another worker has sent, and ``thinks`` that the template has begun a
    thought, which the output ends."""

    prompt_tokens: Count
    resumed: Flag = False
    thinks: Flag = False


@dataclass(frozen=True, kw_only=True)
class WireScores(WireMessage):
    """Log-probabilities in the model's own distribution, in columns: for each position its own
    token, and then the most likely ones.

    Attributes:
        sizes: number of entries of each position, at least 1.
        tokens, logprobs: columns with one value for each entry.
        spelled: the bytes of each entry's token, with one character for each byte.
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
        """The scores without those of the first positions."""
        start = sum(self.sizes[:positions])
        return WireScores(
            sizes=self.sizes[positions:], tokens=self.tokens[start:],
            logprobs=self.logprobs[start:], spelled=self.spelled[start:],
        )  # fmt: skip


class WireCommit(NamedTuple):
    """How much of a chunk one forward decided: a :class:`paradecode.core.trace.Commit` as counts.

    Attributes:
        forward: number of the forward, from 1, for each output.
        tokens: number of tokens.
        characters: number of characters of the text.
    """

    forward: Count
    tokens: Count
    characters: Count


Commits = Annotated[list[WireCommit], Field(max_length=MAX_LIST, fail_fast=True)]


@dataclass(frozen=True, kw_only=True)
class OutputChunk(OneRequest):
    """A piece of an output, which one or several forwards made certain.

    Attributes:
        index: number of the output, among the request's ``n``.
        text: new text. It may be empty: a character or a stop text may still be incomplete.
        tokens: the committed ids; control tokens and stop texts are in it but not in ``text``.
        forward: target forwards of the output so far.
        commits: the parts that each forward decided; together all of ``tokens`` and ``text``.
            Empty for a prompt that is read, and for a search.
        logprobs: one position for each token, if they were asked for.
        canvas: for a diffusion model, the text of each position behind the output, None where
            it is masked; only if ``provisional`` was asked for.
        embedding: the embedding of a prompt that was read for it.
        ranked: for each candidate the log-probabilities of its tokens.
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
        """The commits with their tokens and texts."""
        token = character = 0
        for forward, tokens, characters in self.commits:
            ends = token + tokens, character + characters
            ids, text = self.tokens[token : ends[0]], self.text[character : ends[1]]
            yield Commit(forward, tuple(ids), text)
            token, character = ends

    def behind(self, tokens: int, characters: int) -> OutputChunk:
        """The chunk without its first ``tokens`` tokens and ``characters`` characters."""
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
        index: number of the output, always 0.
        branch: number of the branch.
        after: number of the branch that it continues; None is the prompt.
        text: new text.
        tokens: number of tokens that the branch itself has made.
        reason: why it ended.
        score: the scorer's score, once it is known.
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
    """The cost of a search, over all its branches, and the score of this output."""

    branches: Count
    tokens: Count
    rows: Count
    seconds: Seconds
    score: Annotated[float, Field(strict=True)] | None = None


@dataclass(frozen=True, kw_only=True)
class Done(OneRequest):
    """An output has ended. If the reason is ``deadline`` or ``cancelled``, it has what was decoded.

    Attributes:
        index: number of the output, among the request's ``n``.
        method: the spec that decoded it.
        stats: its counts and times.
        stopped: the stop text that ended it.
        predicted: whether the drafts came from the request's own ``prediction``.
        diffusion_steps: number of steps of a canvas.
        time_to_first_token: seconds from arrival at the worker; None without a token.
        search: the cost of the search that found the output, if one did.
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


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt(OneRequest):
    """Answer to :class:`Tokenize`: token ids, and the text of each of them."""

    tokens: Tokens
    texts: Texts


@dataclass(frozen=True, kw_only=True)
class DecodedText(OneRequest):
    """Answer to :class:`Detokenize`."""

    text: Text


@dataclass(frozen=True, kw_only=True)
class WorkerStats(OneRequest):
    """What a worker is doing at present, and what it has done since it started.

    Attributes:
        running, waiting: outputs in the batch and in the queue.
        waiting_tokens: prompt tokens in the queue.
        batch: the most outputs that run at the same time.
        pages, held_pages, idle_pages: pages of K/V memory over all models: their number, those
            that live outputs hold, and those that the prefix cache keeps.
        forwards, steps: numbers of the engine since it started.
        refused: number of requests that were answered with 429 or 503.
        memory_bytes: resident memory.
    """

    running: Count
    waiting: Count
    waiting_tokens: Count
    batch: Count
    pages: Count
    held_pages: Count
    idle_pages: Count
    forwards: Count
    steps: Count
    refused: Count
    memory_bytes: Count


@dataclass(frozen=True, kw_only=True)
class CachedBlocks(OneRequest):
    """Blocks of 16 tokens in the prefix cache, and what the worker is doing.

    Attributes:
        next: value to send in the next :class:`AskBlocks`.
        whole: whether ``stored`` is everything, so that earlier answers no longer count.
        stored, removed: hashes, as hexadecimal numbers.
    """

    next: Count
    whole: Flag
    stored: Hashes
    removed: Hashes
    stats: WorkerStats


@dataclass(frozen=True, kw_only=True)
class Failure(OneRequest):
    """The request has failed and is over. ``status`` is that of HTTP.

    Attributes:
        param: the field that is wrong.
        code: a word for programs; None where the status is enough.
        retry_after: seconds after which to try again, with 429 and 503.
    """

    status: Literal[400, 404, 413, 422, 429, 500, 503]
    message: Short
    param: Name | None = None
    code: Name | None = None
    retry_after: Seconds | None = None

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "invalid_request_error")


REQUESTS: dict[str, type[WireMessage]] = {
    "generate": Generate, "cancel": Cancel, "tokenize": Tokenize, "detokenize": Detokenize,
    "stats": AskStats, "blocks": AskBlocks, "drain": Drain,
}  # fmt: skip
EVENTS: dict[str, type[WireMessage]] = {
    "ready": Ready, "accepted": Accepted, "chunk": OutputChunk, "branch": BranchNews, "done": Done,
    "tokens": TokenizedPrompt, "text": DecodedText, "stats": WorkerStats, "blocks": CachedBlocks,
    "error": Failure,
}  # fmt: skip

Question = Union[Tokenize, Detokenize, AskStats, AskBlocks]
"""A message with one answer."""

Request = Union[Generate, Cancel, Question, Drain]
OutputEvent = Union[Accepted, OutputChunk, BranchNews, Done, Failure]
"""An event about a :class:`Generate`."""

Event = Union[Ready, OutputEvent, TokenizedPrompt, DecodedText, WorkerStats, CachedBlocks]
