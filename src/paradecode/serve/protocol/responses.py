"""The request of ``/v1/responses``, turned into a chat request of this server; nothing is
stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from paradecode.core.sampling import MAX_TOKENS
from paradecode.serve.protocol.base import Body, validated
from paradecode.serve.protocol.chat import MAX_MESSAGES, ChatRequest
from paradecode.serve.protocol.constraints import NamedSchema
from paradecode.serve.protocol.content import Content
from paradecode.serve.protocol.fields import Common, Name, Text
from paradecode.serve.protocol.harmless import Nothing
from paradecode.serve.protocol.tools import Arguments, Function, FunctionName


class InputMessage(Body):
    """A message; ``id`` and ``status`` occur in messages of earlier answers."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: Name | None = None
    status: Name | None = None


class PastCall(Body):
    """A call that an earlier answer made, with its ``id`` and ``status``."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: Arguments
    id: Name | None = None
    status: Name | None = None


class CallOutput(Body):
    type: Literal["function_call_output"]
    call_id: Name
    output: Content
    id: Name | None = None
    status: Name | None = None


Item = InputMessage | PastCall | CallOutput


class TextFormat(NamedSchema):
    type: Literal["text", "json_object", "json_schema"]


class FlatTool(Function):
    type: Literal["function"]


class FlatChoice(Body):
    type: Literal["function"]
    name: FunctionName


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Name | None = None


class ResponsesRequest(Common):
    input: (
        Annotated[Text, StringConstraints(min_length=1)]
        | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    )
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None

    reasoning: Annotated[dict[Name, Name | None], Field(max_length=4)] | None = None
    include: Nothing | None = None

    def chat(self) -> ChatRequest:
        """This request as one of ``/v1/chat/completions``.

        Raises:
            ApiError: 400, for anything that the chat route refuses.
        """
        if isinstance(self.input, str):
            messages = [{"role": "user", "content": self.input}]
        else:
            messages = _messages(self.input)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        given = {
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "tools": [_tool(tool) for tool in self.tools or ()] or None,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": None if self.text is None else _format(self.text.format),
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        if isinstance(self.tool_choice, FlatChoice):
            function = {"name": self.tool_choice.name}
            given["tool_choice"] = {"type": "function", "function": function}
        return validated(ChatRequest, {k: v for k, v in given.items() if v is not None})


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The items as messages. A call joins the assistant's message before it, or becomes one
    itself."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": item.content})
        elif isinstance(item, CallOutput):
            said = {"tool_call_id": item.call_id, "content": item.output}
            messages.append({"role": "tool", **said})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _tool(tool: FlatTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _format(chosen: TextFormat | None) -> dict[str, Any] | None:
    if chosen is None or chosen.type != "json_schema":
        return None if chosen is None else {"type": chosen.type}
    named = chosen.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
    return {"type": "json_schema", "json_schema": named}
