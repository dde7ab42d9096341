"""``/v1/completions``, ``/tokenize`` and ``/detokenize``: the requests."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from paradecode.serve.protocol.base import Body
from paradecode.serve.protocol.chat import MAX_MESSAGES, Message
from paradecode.serve.protocol.fields import (
    Name,
    Sampled,
    Text,
    TokenIds,
    TopLogprobs,
)  # fmt: skip
from paradecode.serve.wire import PromptInput

DEFAULT_MAX_TOKENS = 16
"""As OpenAI's route has it."""

SomeTokenIds = Annotated[TokenIds, Field(min_length=1)]


class CompletionRequest(Sampled):
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=1 << 12)]
        | SomeTokenIds
        | Annotated[list[SomeTokenIds], Field(min_length=1, max_length=1 << 12)]
    )
    logprobs: TopLogprobs | None = None

    def sampling(self) -> dict[str, Any]:
        chosen = {"max_tokens": DEFAULT_MAX_TOKENS, **super().sampling()}
        return chosen if self.logprobs is None else {**chosen, "logprobs": self.logprobs}

    def prompts(self) -> list[PromptInput]:
        given: Any = self.prompt
        one = isinstance(given, str) or isinstance(given[0], int)
        return [
            PromptInput(text=entry) if isinstance(entry, str) else PromptInput(tokens=entry)
            for entry in ([given] if one else given)
        ]


class TokenizeRequest(Body):
    """Either ``prompt``, a text, or ``messages``, a conversation."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    model: Name | None = None
    tokens: TokenIds
