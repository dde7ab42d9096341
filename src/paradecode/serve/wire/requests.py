"""Messages that are sent to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union

from pydantic import Field

from paradecode.core.errors import InvalidInput
from paradecode.serve.wire.fields import *

ConstraintType = Literal["json_schema", "json_object", "regex", "lark", "choice", "python"]


@dataclass(frozen=True, kw_only=True)
class PromptInput(WireMessage):
    """The model's input: exactly one of ``text``, ``tokens`` and ``messages``.

    Attributes:
        text: raw text, in which names of control tokens become control tokens.
        tokens: token ids.
        messages: a conversation for the model's chat template, which also reads ``tools`` and
            ``variables``.
        begun: the beginning of the answer to ``messages``, which the output continues.
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
    """A constraint on the output. ``value`` is checked when the constraint is made from it."""

    type: ConstraintType
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class SearchSpec(WireMessage):
    """A search over many branches for one prompt. The ``n`` best become the request's outputs.

    Attributes:
        strategy: spec of the strategy, which may not name files.
        scorer: spec of the scorer, which may not name files; None means the worker's own scorer.
        branches: the most branches at a time.
        tokens: the most tokens of all branches together.
        shows: whether the worker sends :class:`BranchNews`.
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
        sampling: fields of ``SamplingParams``. Without ``max_tokens``, the worker sets it.
        decoder: a spec, or a mapping with ``method``, which may not name files. ``none`` is plain
            decoding. None is the server's default for the model, or ``predicted-output`` with a
            ``prediction``.
        prediction: text that the output will probably be.
        salt: requests with different salts share no caches.
        key: name of the client's key. Waiting requests of different keys take turns.
        priority: a smaller number goes first.
        deadline: seconds after arrival at which the request ends with what is decoded.
        thoughts: the most tokens of reasoning before the answer, or None.
        provisional: whether chunks also show the undecided canvas of a diffusion model.
        resume: for each output the tokens that a dead worker has sent, or None if the output has
            ended. The output continues after these tokens if the method decodes from left to right.
        reads: what to compute from the prompt, if nothing is generated. One chunk then has the
            prompt's ``tokens``, and their ``logprobs`` (0 for the first token), the ``embedding``,
            or in ``ranked`` the scores of the ``candidates``.
        top: number of most likely tokens to report beside each token of the prompt.
        candidates: continuations of the prompt, as texts or token ids.
        search: the search that finds the outputs, or None if each output is a single sample.
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
    thoughts: Count | None = None
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
    """End a request now. Its outputs are reported as ``cancelled``. Unknown ids are ignored."""


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
    """Ask for cached blocks. The answer is a :class:`CachedBlocks`.

    With ``since``, the ``next`` of an earlier answer, it has the changes after that answer, if they
    are still known. Otherwise it has all blocks.
    """

    since: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Drain(WireMessage):
    """Tell the worker to accept no more requests, to finish those that it has, and then to exit."""


REQUESTS: dict[str, type[WireMessage]] = {
    "generate": Generate, "cancel": Cancel, "tokenize": Tokenize, "detokenize": Detokenize,
    "stats": AskStats, "blocks": AskBlocks, "drain": Drain,
}  # fmt: skip

Question = Union[Tokenize, Detokenize, AskStats, AskBlocks]
"""A message that has one answer."""

Request = Union[Generate, Cancel, Question, Drain]
