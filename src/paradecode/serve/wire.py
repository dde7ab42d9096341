"""Messages between the server's front and its workers: one JSON object a line, every field checked.

The front and the engine are different processes, and neither trusts what the other writes: a line
is decoded into one of the dataclasses below or refused with an error that names the field.
``REQUESTS`` go to a worker, ``EVENTS`` come back. A request is complete when ``Done`` was sent for
each of its ``n`` outputs, or ``Failure`` once.
"""

# ruff: noqa: RUF009 (the defaults are fields made by checked)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from paradecode.core.errors import InvalidInput
from paradecode.serve.checks import (
    anything,
    checked,
    flag,
    listed,
    mapping,
    maybe,
    nested,
    number,
    one_of,
    string,
    whole,
)

MAX_ID = 128
MAX_TEXT = 1 << 23
MAX_LIST = 1 << 20
MAX_VOCABULARY = 1 << 31
WORKER = "worker"
"""The id in a failure of the worker itself: it could not load its model, or stops."""

STATUSES = (400, 404, 413, 422, 429, 500, 503)
FINISH_REASONS = ("stop", "length", "deadline", "cancelled")
CONSTRAINTS = ("json_schema", "json_object", "regex", "lark", "choice", "python")
LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot write."""


def _spec(where: str, value: Any) -> str | dict[str, Any]:
    if not isinstance(value, (str, dict)):
        raise InvalidInput(where, value, "give a text, or an object with method")
    return value


_ID = string(MAX_ID, least=1)
_TOKEN = whole(0, MAX_VOCABULARY)
_TOKENS = listed(_TOKEN, MAX_LIST)
_COUNT = whole(0, 1 << 62)
_SECONDS = number(0.0, 1e9)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What the model is given: exactly one of ``text``, ``tokens`` and ``messages``.

    Attributes:
        text: raw text; control tokens in it count.
        tokens: token ids.
        messages: a conversation, for the model's chat template, which reads ``tools`` as well.
    """

    text: str | None = checked(maybe(string(MAX_TEXT)), None)
    tokens: list[int] | None = checked(maybe(_TOKENS), None)
    messages: list[dict[str, Any]] | None = checked(maybe(listed(mapping, 1 << 12)), None)
    tools: list[dict[str, Any]] | None = checked(maybe(listed(mapping, 1 << 10)), None)

    def __post_init__(self) -> None:
        given = [self.text is not None, self.tokens is not None, self.messages is not None]
        if sum(given) != 1:
            raise InvalidInput("prompt", sum(given), "give one of text, tokens and messages")
        if self.tools is not None and self.messages is None:
            raise InvalidInput("prompt.tools", len(self.tools), "tools need messages")


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What the output must be; the constraint itself checks ``value``."""

    type: str = checked(one_of(*CONSTRAINTS))
    value: Any = checked(anything, None)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Ask for ``n`` outputs of one prompt.

    Attributes:
        id: chosen by the sender, unique among its live requests.
        sampling: fields of ``SamplingParams``; without ``max_tokens`` the worker chooses.
        decoder: None is the model's default of this server (with a ``prediction``,
            ``predicted-output``), ``none`` plain decoding, else a spec or a mapping with
            ``method``, which may not name files.
        prediction: what the output will probably be.
        salt: the tenant; nothing is shared between tenants, and their waiting requests take turns.
        priority: smaller goes first.
        deadline: seconds from arrival after which the request ends with what it has.
        provisional: chunks show the undecided canvas of a diffusion model, too.
    """

    id: str = checked(_ID)
    prompt: Prompt = checked(nested(Prompt))
    sampling: dict[str, Any] = checked(mapping)
    decoder: str | dict[str, Any] | None = checked(maybe(_spec), None)
    prediction: str | None = checked(maybe(string(MAX_TEXT)), None)
    salt: str = checked(string(256), "")
    priority: int = checked(whole(-(1 << 31), 1 << 31), 0)
    deadline: float | None = checked(maybe(_SECONDS), None)
    constraint: Constraint | None = checked(maybe(nested(Constraint)), None)
    provisional: bool = checked(flag, False)


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """End a request now; its outputs are reported as ``cancelled``. Unknown ids are ignored."""

    id: str = checked(_ID)


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Answered by :class:`Tokens`."""

    id: str = checked(_ID)
    prompt: Prompt = checked(nested(Prompt))


@dataclass(frozen=True, kw_only=True)
class Detokenize:
    """Answered by :class:`Text`."""

    id: str = checked(_ID)
    tokens: list[int] = checked(_TOKENS)


@dataclass(frozen=True, kw_only=True)
class AskStats:
    """Answered by :class:`Stats`."""

    id: str = checked(_ID)


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Accept nothing more, finish what was accepted, then exit."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The model is loaded. ``decoder`` is the spec that requests without one use; ``tools`` says
    that its chat template shows tools."""

    model: str = checked(string(4096))
    families: list[str] = checked(listed(string(64), 8))
    context_length: int = checked(_COUNT)
    vocab_size: int = checked(_COUNT)
    decoder: str = checked(string(1 << 16))
    draft_model: str | None = checked(maybe(string(4096)))
    chat: bool = checked(flag)
    tools: bool = checked(flag, False)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The request is in the worker's queue; comes before its chunks."""

    id: str = checked(_ID)
    prompt_tokens: int = checked(_COUNT)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token and its log-probability in the model's own distribution.

    ``text`` shows bytes that are not whole characters as U+FFFD; ``bytes`` has them.
    """

    token: int = checked(_TOKEN)
    text: str = checked(string(1 << 16))
    bytes: list[int] = checked(listed(whole(0, 256), 1 << 16))
    logprob: float = checked(number(LEAST_LOGPROB, 1.0))


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """One output token, and the most likely ones at its position."""

    chosen: Candidate = checked(nested(Candidate))
    top: list[Candidate] = checked(listed(nested(Candidate), 64))


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one forward made certain.

    Attributes:
        index: of the output, among the request's ``n``.
        text: may be empty: a character or a stop text may still be incomplete.
        tokens: the committed ids; control tokens and stop texts are in it but not in ``text``.
        forward: number of the target forward that committed them, from 1, for each output.
        logprobs: one entry a token, if they were asked for.
        canvas: of a diffusion model, the text of each position behind the output, None where it
            is masked; only if ``provisional`` was asked for.
    """

    id: str = checked(_ID)
    index: int = checked(whole(0, 1 << 16))
    text: str = checked(string(MAX_TEXT))
    tokens: list[int] = checked(_TOKENS)
    forward: int = checked(_COUNT)
    logprobs: list[TokenLogprobs] | None = checked(
        maybe(listed(nested(TokenLogprobs), MAX_LIST)), None
    )
    canvas: list[str | None] | None = checked(maybe(listed(maybe(string(1 << 16)), MAX_LIST)), None)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one output; OpenAI's names."""

    prompt_tokens: int = checked(_COUNT)
    completion_tokens: int = checked(_COUNT)
    cached_prompt_tokens: int = checked(_COUNT, 0)
    accepted_prediction_tokens: int = checked(_COUNT, 0)
    rejected_prediction_tokens: int = checked(_COUNT, 0)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How one output was decoded.

    Attributes:
        method: its spec.
        forwards, rows: of the target.
        tokens: of the output.
        drafts: forwards that verified a draft.
        drafted, accepted, rejected: draft tokens.
        accepted_per_position: how often the draft token at depth 1, 2, ... was accepted.
        diffusion_steps: steps of a canvas.
        seconds: ``queue``, ``prompt`` (to the first commit), ``decode`` (from it to the end); and
            what the last two were spent on: ``target`` and ``draft`` forwards, ``method`` (its
            Python: drafting, verifying, sampling) and ``other``.
        time_to_first_token: from arrival at the worker; None without a token.
    """

    method: str = checked(string(1 << 16))
    forwards: int = checked(_COUNT)
    rows: int = checked(_COUNT)
    tokens: int = checked(_COUNT)
    drafts: int = checked(_COUNT, 0)
    drafted: int = checked(_COUNT, 0)
    accepted: int = checked(_COUNT, 0)
    rejected: int = checked(_COUNT, 0)
    accepted_per_position: list[int] = checked(listed(_COUNT, 1 << 16))
    diffusion_steps: int = checked(_COUNT, 0)
    seconds: dict[str, float] = checked(mapping)
    time_to_first_token: float | None = checked(maybe(_SECONDS), None)


@dataclass(frozen=True, kw_only=True)
class Done:
    """An output has ended; ``deadline`` and ``cancelled`` ones have what was decoded until then."""

    id: str = checked(_ID)
    index: int = checked(whole(0, 1 << 16))
    finish_reason: str = checked(one_of(*FINISH_REASONS))
    usage: Usage = checked(nested(Usage))
    metrics: Metrics = checked(nested(Metrics))


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Answer to :class:`Tokenize`: ids, and the text of each of them."""

    id: str = checked(_ID)
    tokens: list[int] = checked(_TOKENS)
    texts: list[str] = checked(listed(string(1 << 16), MAX_LIST))


@dataclass(frozen=True, kw_only=True)
class Text:
    """Answer to :class:`Detokenize`."""

    id: str = checked(_ID)
    text: str = checked(string(MAX_TEXT))


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What a worker is doing at present, and what it has done since it started.

    Attributes:
        running, waiting: outputs in the batch and in the queue.
        waiting_tokens: prompt tokens in the queue.
        batch: the most that run at the same time.
        pages, held_pages, idle_pages: of K/V memory, over all models: how many there are, how many
            live outputs hold, and how many the prefix cache keeps.
        forwards, steps: of the engine since it started.
        requests, refused: given to the worker, and answered with 429 or 503.
        prompt_tokens, cached_tokens: of the outputs that ended, and how many were prefix hits.
        memory_bytes: resident.
        uptime: seconds.
    """

    id: str = checked(_ID)
    running: int = checked(_COUNT)
    waiting: int = checked(_COUNT)
    waiting_tokens: int = checked(_COUNT)
    batch: int = checked(_COUNT)
    pages: int = checked(_COUNT)
    held_pages: int = checked(_COUNT)
    idle_pages: int = checked(_COUNT)
    forwards: int = checked(_COUNT)
    steps: int = checked(_COUNT)
    requests: int = checked(_COUNT)
    refused: int = checked(_COUNT)
    prompt_tokens: int = checked(_COUNT)
    cached_tokens: int = checked(_COUNT)
    memory_bytes: int = checked(_COUNT)
    uptime: float = checked(_SECONDS)
    draining: bool = checked(flag)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The request is over. ``status`` and ``type`` are the HTTP API's.

    Attributes:
        type: ``invalid_request_error``, ``rate_limit_error``, ``overloaded_error`` or
            ``server_error``.
        param: the field that is wrong.
        retry_after: seconds, with 429 and 503.
    """

    id: str = checked(_ID)
    status: int = checked(one_of(*STATUSES))
    type: str = checked(string(64))
    message: str = checked(string(1 << 16))
    param: str | None = checked(maybe(string(1 << 12)), None)
    retry_after: float | None = checked(maybe(_SECONDS), None)


REQUESTS: dict[str, type] = {
    "generate": Generate, "cancel": Cancel, "tokenize": Tokenize, "detokenize": Detokenize,
    "stats": AskStats, "drain": Drain,
}  # fmt: skip
EVENTS: dict[str, type] = {
    "ready": Ready, "accepted": Accepted, "chunk": Chunk, "done": Done, "tokens": Tokens,
    "text": Text, "stats": Stats, "error": Failure,
}  # fmt: skip

Request = Union[Generate, Cancel, Tokenize, Detokenize, AskStats, Drain]
Event = Union[Ready, Accepted, Chunk, Done, Tokens, Text, Stats, Failure]
