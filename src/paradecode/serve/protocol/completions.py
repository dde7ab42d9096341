"""The requests of ``/v1/completions``, ``/infill``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from paradecode.core.sampling import MAX_TOKENS
from paradecode.serve.errors import wrong
from paradecode.serve.protocol.base import Body, Yes
from paradecode.serve.protocol.chat import MAX_MESSAGES, Message
from paradecode.serve.protocol.fields import (
    Name,
    Sampled,
    Text,
    TokenIds,
    TopLogprobs,
)  # fmt: skip
from paradecode.serve.wire import ConstraintSpec, PromptInput

DEFAULT_MAX_TOKENS = 16
"""Default of ``max_tokens``, as in OpenAI's route for completions."""

SomeTokenIds = Annotated[TokenIds, Field(min_length=1)]


Prompts = (
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=1 << 12)]
    | SomeTokenIds
    | Annotated[list[SomeTokenIds], Field(min_length=1, max_length=1 << 12)]
)


class CompletionRequest(Sampled):
    prompt: Prompts
    logprobs: TopLogprobs | None = None
    echo: bool | None = Field(None, description="Begin each output with its prompt.")
    add_special_tokens: Yes | None = None
    suffix: Text | None = Field(None, description="The text behind what is to be written.")
    max_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="0 only reads the prompt."
    )

    @property
    def scored(self) -> int | None:
        """The number of tokens to report besides each token of the prompt, or None.

        None means that the prompt's tokens need no log-probabilities.
        """
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        asked = [top for top in wanted if top is not None]
        return max(asked) if asked else (0 if self.max_tokens == 0 else None)

    @model_validator(mode="after")
    def _streams(self) -> CompletionRequest:
        if self.stream and (self.max_tokens == 0 or self.prompt_logprobs is not None):
            raise ValueError("a stream has outputs: neither max_tokens 0 nor prompt_logprobs")
        return self

    def sampling(self) -> dict[str, Any]:
        default = {} if self.n_predict == -1 else {"max_tokens": DEFAULT_MAX_TOKENS}
        chosen = {**default, **super().sampling()}
        return chosen if self.logprobs is None else {**chosen, "logprobs": self.logprobs}

    def prompts(self, fim: Sequence[str] = ()) -> list[PromptInput]:
        """Return the prompts for a worker.

        Args:
            fim: the model's tokens before a prefix, a suffix and the middle; empty if it has none.

        Raises:
            ApiError: 400 if the suffix cannot be used.
        """
        found = prompt_inputs(self.prompt)
        if not self.suffix:
            return found
        if self.echo or any(prompt.text is None for prompt in found):
            raise wrong("suffix", "give it with prompts that are texts, and without echo")
        return [between(fim, prompt.text or "", self.suffix) for prompt in found]


class ExtraFile(Body):
    filename: Name = ""
    text: Text


class NativeRequest(Sampled):
    """Fields of llama.cpp's own routes, whose answers have one ``content``."""

    n: int | None = Field(None, ge=1, le=1)
    json_schema: dict[str, Any] | None = Field(None, description="`guided_json`.")

    def constraint(self) -> ConstraintSpec | None:
        if self.json_schema is not None and self.guided_json is None:
            self.guided_json = self.json_schema
        return super().constraint()


class NativeCompletionRequest(NativeRequest):
    """llama.cpp's request to continue one text."""

    prompt: Text | SomeTokenIds


class InfillRequest(NativeRequest):
    """llama.cpp's request to write the text between a prefix and a suffix."""

    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[ExtraFile], Field(max_length=1 << 10)] | None = None
    prompt: Text = Field("", description="The beginning of what is to be written.")

    @property
    def prefix(self) -> str:
        """The text before the gap, after the texts of other files."""
        files = [f"{file.filename}\n{file.text}\n" for file in self.input_extra or ()]
        return "".join(files) + self.input_prefix


def between(fim: Sequence[str], prefix: str, suffix: str, begun: str = "") -> PromptInput:
    """Return the prompt that asks for the text between a prefix and a suffix.

    Args:
        fim: the model's tokens before a prefix, a suffix and the middle.
        begun: the beginning of the text that is to be written.

    Raises:
        ApiError: 400 if the model has no such tokens.
    """
    if not fim:
        raise wrong("suffix", "this model has no tokens that fill in the middle")
    return PromptInput(text=f"{fim[0]}{prefix}{fim[1]}{suffix}{fim[2]}{begun}")


def prompt_inputs(given: Any) -> list[PromptInput]:
    """Return the prompts for a worker, from a text, a list of token ids, or a list of several."""
    one = isinstance(given, str) or isinstance(given[0], int)
    return [
        PromptInput(text=entry) if isinstance(entry, str) else PromptInput(tokens=entry)
        for entry in ([given] if one else given)
    ]


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


class TemplateRequest(Body):
    """llama.cpp's request for the text that the model reads of a conversation."""

    model: Name | None = None
    messages: Messages


class TokenizeRequest(Body):
    """A request with either ``prompt``, a text, or ``messages``, a conversation."""

    model: Name | None = None
    prompt: Text | None = None
    content: Text | None = Field(None, description="llama.cpp's name of `prompt`.")
    messages: Messages | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if self.prompt is None:
            self.prompt, self.content = self.content, None
        if self.content is not None or (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    model: Name | None = None
    tokens: TokenIds
