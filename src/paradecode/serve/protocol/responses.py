"""``/v1/responses``: the request, of which the plain part is served: text in, text out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from paradecode.core.sampling import MAX_TOKENS
from paradecode.serve.protocol.base import Body
from paradecode.serve.protocol.chat import MAX_MESSAGES
from paradecode.serve.protocol.content import Content
from paradecode.serve.protocol.fields import Common, Name, Text
from paradecode.serve.wire import PromptInput


class InputMessage(Body):
    """A message; ``id`` and ``status`` come with those of earlier answers."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: Name | None = None
    status: Name | None = None


class TextFormat(Body):
    type: Literal["text"]


class TextOptions(Body):
    format: TextFormat | None = None


class ResponsesRequest(Common):
    input: (
        Annotated[Text, StringConstraints(min_length=1)]
        | Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    )
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    text: TextOptions | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None

    def sampling(self) -> dict[str, Any]:
        limit = {} if self.max_output_tokens is None else {"max_tokens": self.max_output_tokens}
        return super().sampling() | limit

    def prompt(self) -> PromptInput:
        if isinstance(self.input, str):
            messages = [{"role": "user", "content": self.input}]
        else:
            messages = [{"role": m.role, "content": m.content} for m in self.input]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return PromptInput(messages=messages)
