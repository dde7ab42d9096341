"""The request of Anthropic's ``/v1/messages``, and how it becomes a chat request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from paradecode.core.sampling import MAX_STOPS, MAX_TOKENS
from paradecode.serve.errors import wrong
from paradecode.serve.protocol.base import FOREIGN, Body, Foreign, kinds, validated
from paradecode.serve.protocol.chat import MAX_MESSAGES, ChatRequest
from paradecode.serve.protocol.content import Content, Shown, text_of
from paradecode.serve.protocol.fields import Common, Name, Stop, Text
from paradecode.serve.protocol.tools import MAX_TOOLS, ForeignTool, FunctionName


class Marked(Body):
    """A block that may have ``cache_control``.

    That changes nothing, because every prompt is cached.
    """


class TextBlock(Marked):
    type: Literal["text"]
    text: Text


class Compaction(Marked):
    """A summary that replaces the turns before it."""

    type: Literal["compaction"]
    content: Text | None = None


class ReadBlock(Marked):
    """A document or a search result. The model reads its text."""

    type: Literal["document", "search_result"]
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in ("document", "search_result"):
            return given
        rest = {name: v for name, v in given.items() if name not in ("source", "content")}
        return {**rest, "text": text_of([given])}


class ForeignBlock(Foreign):
    """Reasoning, or what tools of another server did. The model does not read such a block."""


class ToolUse(Marked):
    type: Literal["tool_use"]
    id: Name
    name: FunctionName
    input: dict[str, Any]


class ToolResult(Marked):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Shown | None = None
    is_error: bool | None = None

    @property
    def shown(self) -> str:
        return ("Error: " if self.is_error else "") + (self.content or "")


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[ToolResult, Tag("tool_result")]
    | Annotated[Compaction, Tag("compaction")]
    | Annotated[ReadBlock, Tag("document")]
    | Annotated[ReadBlock, Tag("search_result")]
    | Annotated[ForeignBlock, Tag(FOREIGN)],
    kinds("text", "tool_use", "tool_result", "compaction", "document", "search_result"),
]
Blocks = Annotated[list[Block], Field(max_length=1 << 10)]


class MessageTurn(Body):
    role: Literal["user", "assistant", "system"]
    content: Text | Blocks


class ToolOffer(Marked):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


AnyOffer = Annotated[
    Annotated[ToolOffer, Tag("custom")] | Annotated[ForeignTool, Tag(FOREIGN)],
    kinds("custom", default="custom"),
]


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class AnswerSchema(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    format: AnswerSchema | None = None
    effort: Name | None = None


class Thinking(Body):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)


class NewThread(Body):
    type: Literal["create"]


class ForeignThread(Foreign):
    """A thread that the server would have to store, so it is refused."""


AnyThread = Annotated[
    Annotated[NewThread, Tag("create")] | Annotated[ForeignThread, Tag(FOREIGN)], kinds("create")
]


class CountTokensRequest(Common):
    messages: Annotated[list[MessageTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    tools: Annotated[list[AnyOffer], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None
    thread: AnyThread | None = None
    thinking: Thinking | None = Field(None, description="Sets the template's `enable_thinking`.")

    def chat(self) -> ChatRequest:
        """Return this request as a request of ``/v1/chat/completions``.

        Raises:
            ApiError: 400 if the chat route would refuse the request.
        """
        turns = [_messages(turn) for turn in self.messages]
        messages = [message for turn in turns for message in turn]
        goes_on = self.messages[-1].role == "assistant" and bool(turns[-1])
        if not messages:
            raise wrong("messages", "none of them has anything that the model reads")
        if goes_on and messages[-1].get("content", "")[-1:].isspace():
            fix = "the answer goes on behind the last turn: remove the white space at its end"
            raise wrong("messages", fix)
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        given = {
            **self.settings(),
            "messages": messages,
            "continue_final_message": goes_on,
            "tools": [_tool(tool) for tool in self.tools or () if isinstance(tool, ToolOffer)],
        }
        if self.thinking is not None:
            thinks = self.thinking.type != "disabled"
            given["chat_template_kwargs"] = {"enable_thinking": thinks}
            given["reasoning_budget"] = self.thinking.budget_tokens
        if self.output_config:
            given["reasoning_effort"] = self.output_config.effort
        if self.output_config and self.output_config.format:
            named = {"name": "answer", "schema": self.output_config.format.schema_}
            given["response_format"] = {"type": "json_schema", "json_schema": named}
        if self.tool_choice is not None:
            foreign = len(given["tools"]) < len(self.tools or ())
            given["tool_choice"] = _choice(self.tool_choice, given["tools"], foreign)
            given["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        return validated(ChatRequest, {k: v for k, v in given.items() if v is not None})

    @property
    def about_thoughts(self) -> list[str]:
        effort = self.output_config and self.output_config.effort
        budget = self.thinking and self.thinking.budget_tokens
        given = {"thinking.budget_tokens": budget, "output_config.effort": effort}
        return [name for name, value in given.items() if value is not None]

    def settings(self) -> dict[str, Any]:
        """Return the settings of the output, under the chat route's names."""
        return {}


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)

    def settings(self) -> dict[str, Any]:
        same = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        return {**same, "max_tokens": self.max_tokens, "stop": self.stop_sequences}


def _messages(turn: MessageTurn) -> list[dict[str, Any]]:
    """Return a turn as messages.

    Each result of a tool becomes a message of its own, before the turn's text.
    """
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.shown}
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
    told = [block.text for block in turn.content if isinstance(block, (TextBlock, ReadBlock))]
    told += [b.content for b in turn.content if isinstance(b, Compaction) and b.content]
    text = "\n".join(told)
    if turn.role != "user" and not (text or calls or results):
        return []  # It has only reasoning, or calls of server tools.
    said: dict[str, Any] = {"role": turn.role, **({"content": text} if text or not calls else {})}
    said |= {"tool_calls": calls} if calls else {}
    return [*results, said] if text or calls or not results else results


def _tool(tool: ToolOffer) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: Choice, tools: list[dict[str, Any]], foreign: bool) -> Any:
    """Return the tool choice under the chat route's names.

    A tool that is no function cannot be chosen. A request that wants such a tool leaves the choice
    to the model.
    """
    names = [tool["function"]["name"] for tool in tools]
    if foreign and (choice.name not in names if choice.type == "tool" else not names):
        return "none" if choice.type == "none" else "auto"
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"any": "required"}.get(choice.type, choice.type)
