"""The request of Anthropic's ``/v1/messages``, turned into a chat request of this server."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from paradecode.core.sampling import MAX_STOPS, MAX_TOKENS
from paradecode.serve.errors import wrong
from paradecode.serve.protocol.base import Body, validated
from paradecode.serve.protocol.chat import MAX_MESSAGES, ChatRequest
from paradecode.serve.protocol.content import Content
from paradecode.serve.protocol.fields import Common, Name, Stop, Text
from paradecode.serve.protocol.tools import FunctionName


class Marked(Body):
    """A block with ``cache_control``, which changes nothing: every prompt is cached."""

    cache_control: Annotated[dict[Name, Name], Field(max_length=4)] | None = None


class TextBlock(Marked):
    type: Literal["text"]
    text: Text
    citations: None = None


class ToolUse(Marked):
    type: Literal["tool_use"]
    id: Name
    name: FunctionName
    input: dict[str, Any]


class ToolResult(Marked):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Content = ""
    is_error: bool | None = None


Block = Annotated[TextBlock | ToolUse | ToolResult, Field(discriminator="type")]
Blocks = Annotated[list[Block], Field(min_length=1, max_length=1 << 10)]


class MessageTurn(Body):
    role: Literal["user", "assistant"]
    content: Text | Blocks


class ToolOffer(Marked):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["disabled"]


class CountTokensRequest(Common):
    messages: Annotated[list[MessageTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    tools: Annotated[list[ToolOffer], Field(max_length=128)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None

    def chat(self) -> ChatRequest:
        """This request as one of ``/v1/chat/completions``.

        Raises:
            ApiError: 400, for anything that the chat route refuses.
        """
        messages = [message for turn in self.messages for message in _messages(turn)]
        goes_on = self.messages[-1].role == "assistant"
        if goes_on and messages[-1].get("content", "")[-1:].isspace():
            fix = "the answer goes on behind the last turn: remove the white space at its end"
            raise wrong("messages", fix)
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        given = {
            **self.settings(),
            "messages": messages,
            "continue_final_message": goes_on,
            "tools": [_tool(tool) for tool in self.tools or ()] or None,
        }
        if self.tool_choice is not None:
            given["tool_choice"] = _choice(self.tool_choice)
            given["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        return validated(ChatRequest, {k: v for k, v in given.items() if v is not None})

    def settings(self) -> dict[str, Any]:
        """The fields about the output, in the chat route's names."""
        return {}


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)

    def settings(self) -> dict[str, Any]:
        same = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        return {**same, "max_tokens": self.max_tokens, "stop": self.stop_sequences}


def _messages(turn: MessageTurn) -> list[dict[str, Any]]:
    """A turn as messages; results of tools become messages of their own, in front of the turn's
    text."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
        for block in turn.content
        if isinstance(block, ToolResult)
    ]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {
                "name": block.name,
                "arguments": json.dumps(block.input, ensure_ascii=False),
            },
        }
        for block in turn.content
        if isinstance(block, ToolUse)
    ]
    text = "\n".join(block.text for block in turn.content if isinstance(block, TextBlock))
    said: dict[str, Any] = {"role": turn.role, **({"content": text} if text or not calls else {})}
    said |= {"tool_calls": calls} if calls else {}
    return [*results, said] if text or calls or not results else results


def _tool(tool: ToolOffer) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: Choice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"any": "required"}.get(choice.type, choice.type)
