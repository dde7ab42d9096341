"""The request of OpenAI's ``/v1/responses``, and how it becomes a chat request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, Tag, TypeAdapter, model_validator

from paradecode.core.sampling import MAX_TOKENS
from paradecode.serve.errors import wrong
from paradecode.serve.protocol.base import FOREIGN, Body, Foreign, kinds, validated
from paradecode.serve.protocol.chat import MAX_MESSAGES, ChatRequest
from paradecode.serve.protocol.constraints import NamedSchema
from paradecode.serve.protocol.content import Content, Shown
from paradecode.serve.protocol.fields import Common, Name, Text
from paradecode.serve.protocol.tools import (
    MAX_TOOLS,
    Allowed,
    Arguments,
    ForeignChoice,
    ForeignTool,
    Function,
    FunctionName,
    custom_arguments,
)  # fmt: skip

CALLS = ("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call")
OTHERS = {
    **dict.fromkeys(CALLS, "function_call"),
    **{f"{name}_output": "function_call_output" for name in CALLS},
}
"""Type of an item that is a call of another tool, or its result -> the type that it is read as."""
ABOUT = {"type", "id", "call_id", "status", "name", "caller", "namespace"}
"""Fields of a call that are not its arguments."""


class InputMessage(Body):
    """A message of the conversation. It may come from an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class PastCall(Body):
    """A call that the model made in an earlier answer."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: Arguments

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in CALLS:
            return given
        rest = {name: value for name, value in given.items() if name not in ABOUT}
        written = json.dumps(rest, ensure_ascii=False)
        if kind == "custom_tool_call":
            written = custom_arguments(given.get("input"))
        return {
            "type": "function_call", "call_id": given.get("call_id") or given.get("id"),
            "name": given.get("name") or kind.removesuffix("_call"), "arguments": written,
        }  # fmt: skip


class CallOutput(Body):
    type: Literal["function_call_output"]
    call_id: Name
    output: Shown

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("type") not in OTHERS:
            return given
        said = given.get("output")
        said = [said] if isinstance(said, dict) and "type" in said else said or ""
        of_parts = isinstance(said, list) and all(
            isinstance(part, dict) and "type" in part for part in said
        )
        if not (of_parts or isinstance(said, str)):
            said = json.dumps(said, ensure_ascii=False)
        called = given.get("call_id") or given.get("id")
        return {"type": "function_call_output", "call_id": called, "output": said}


class ForeignItem(Foreign):
    """Reasoning, or what tools of another server did. The model does not read such an item."""


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[PastCall, Tag("function_call")]
    | Annotated[CallOutput, Tag("function_call_output")]
    | Annotated[ForeignItem, Tag(FOREIGN)],
    kinds("message", "function_call", "function_call_output", default="message", others=OTHERS),
]


class TextFormat(NamedSchema):
    type: Literal["text", "json_object", "json_schema"]


class FlatTool(Function):
    type: Literal["function"]


AnyFlatTool = Annotated[
    Annotated[FlatTool, Tag("function")] | Annotated[ForeignTool, Tag(FOREIGN)], kinds("function")
]


class FlatChoice(Body):
    type: Literal["function"]
    name: FunctionName


class FlatAllowed(Allowed):
    type: Literal["allowed_tools"]


AnyFlatChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[FlatChoice, Tag("function")]
        | Annotated[FlatAllowed, Tag("allowed_tools")]
        | Annotated[ForeignChoice, Tag(FOREIGN)],
        kinds("function", "allowed_tools"),
    ]
)


class TextOptions(Body):
    format: TextFormat | None = None


class ResponsesRequest(Common):
    input: (
        Annotated[Text, StringConstraints(min_length=1)]
        | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    )
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    text: TextOptions | None = None
    tools: Annotated[list[AnyFlatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnyFlatChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = Field(None, description="Of a server with `--stored-responses`.")
    previous_response_id: Name | None = Field(None, description="A stored one to go on behind.")

    def chat(self, before: Sequence[dict[str, Any]] = ()) -> ChatRequest:
        """Return this request as a request of ``/v1/chat/completions``.

        Args:
            before: the messages of the conversation that the request continues.

        Raises:
            ApiError: 400 if the chat route would refuse the request.
        """
        if isinstance(self.input, str):
            messages = [{"role": "user", "content": self.input}]
        else:
            messages = _messages(self.input)
        messages = [*before, *messages]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        if not messages:
            raise wrong("input", "nothing in it is a message")
        tools = [_tool(tool) for tool in self.tools or () if isinstance(tool, FlatTool)]
        foreign = len(tools) < len(self.tools or ()) and not tools
        given = {
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "tools": tools or None,
            "tool_choice": None if foreign else self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": None if self.text is None else _format(self.text.format),
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        if isinstance(self.tool_choice, FlatChoice):
            function = {"name": self.tool_choice.name}
            given["tool_choice"] = {"type": "function", "function": function}
        elif isinstance(self.tool_choice, FlatAllowed):
            given["tool_choice"] = {
                "type": "allowed_tools",
                "allowed_tools": self.tool_choice.model_dump(exclude={"type"}, exclude_none=True),
            }
        elif isinstance(self.tool_choice, ForeignChoice):
            del given["tool_choice"]
        return validated(ChatRequest, {k: v for k, v in given.items() if v is not None})


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the items as messages.

    A call joins the assistant's message before it, or becomes a message of its own.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": item.content})
        elif isinstance(item, CallOutput):
            said = {"tool_call_id": item.call_id, "content": item.output}
            messages.append({"role": "tool", **said})
        elif isinstance(item, PastCall):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def answered(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of an answer as messages."""
    return _messages(TypeAdapter(list[Item]).validate_python(items))


def _tool(tool: FlatTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _format(chosen: TextFormat | None) -> dict[str, Any] | None:
    if chosen is None or chosen.type != "json_schema":
        return None if chosen is None else {"type": chosen.type}
    named = chosen.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
    return {"type": "json_schema", "json_schema": named}
