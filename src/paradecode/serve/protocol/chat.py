"""The request of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from paradecode.core.sampling import MAX_TOKENS
from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.protocol.base import Body, No
from paradecode.serve.protocol.content import Content
from paradecode.serve.protocol.fields import EFFORTS, Budget, Name, Sampled, TopLogprobs
from paradecode.serve.protocol.tools import (
    MAX_TOOLS,
    AllowedChoice,
    AnyChoice,
    AnyTool,
    CustomChoice,
    CustomTool,
    Tool,
    ToolCall,
    ToolChoice,
    as_text,
    call_schema,
    for_template,
    instructions,
    offered,
)  # fmt: skip
from paradecode.serve.tool_calls import CallReader
from paradecode.serve.wire import ConstraintSpec, PromptInput

MAX_MESSAGES = 1 << 12
THOUGHTS = ("reasoning_effort", "reasoning_budget", "thinking_token_budget")
FIXED = {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"}
"""Template variables that a request cannot set.

Names that end in ``_token`` cannot be set either.
"""

Variable = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Plain = bool | int | float | Annotated[str, StringConstraints(max_length=1024)] | None


class Message(Body):
    """One message. The message of a tool may have parts that are no text, such as images."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _complete(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to an assistant's message")
        if self.content is None and self.role not in ("assistant", "tool", "function"):
            raise ValueError("content is required")
        return self


class ChatRequest(Sampled):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnyChoice | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = Field(
        None, description="Thoughts are told as `reasoning_content`, unless it is false."
    )
    chat_template_kwargs: Annotated[dict[Variable, Plain], Field(max_length=32)] | None = Field(
        None, description="Variables of the model's template, such as `enable_thinking`."
    )
    add_generation_prompt: bool | None = Field(
        None, description="The opposite of `continue_final_message`."
    )
    continue_final_message: bool | None = Field(
        None, description="The last message, an assistant's, is the beginning of the answer."
    )
    add_special_tokens: No | None = None
    reasoning_effort: Name | None = Field(
        None, description="`none` and `minimal` switch reasoning off; `low` and `medium` bound it."
    )
    reasoning_budget: Budget | None = Field(
        None, description="The most tokens of reasoning; -1 is no bound."
    )
    thinking_token_budget: Budget | None = Field(None, description="vLLM's `reasoning_budget`.")

    @model_validator(mode="after")
    def _streams(self) -> ChatRequest:
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("a stream has outputs: leave prompt_logprobs out")
        return self

    @field_validator("chat_template_kwargs")
    @classmethod
    def _own_variables(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in given or ():
            if name in FIXED or name.endswith("_token"):
                raise ValueError(f"{name} is not a request's to choose")
        return given

    def sampling(self) -> dict[str, Any]:
        chosen = super().sampling()
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise wrong("max_tokens", "it is max_completion_tokens: give one of them")
            chosen["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs", "it needs logprobs to be true")
        if self.logprobs:
            chosen["logprobs"] = self.top_logprobs or 0
        return chosen

    @property
    def thoughts(self) -> int | None:
        given = (self.reasoning_budget, self.thinking_token_budget)
        budget = next((most for most in given if most is not None), None)
        if budget is None:
            return EFFORTS.get(self.reasoning_effort or "")
        return None if budget == -1 else budget

    @property
    def about_thoughts(self) -> list[str]:
        return [name for name in THOUGHTS if getattr(self, name) is not None]

    def _variables(self) -> dict[str, Any] | None:
        """Return the variables of the model's template, of which the request's own ones win."""
        own = {"enable_thinking": False} if self.thoughts == 0 else {}
        return own | (self.chat_template_kwargs or {}) or None

    def callable_tools(self) -> list[Tool]:
        """Return the tools that the request may call: all, the ones that it allows, or none.

        Raises:
            ApiError: 400 if the choice does not fit the tools.
        """
        tools, choice = self._known_tools(), self.tool_choice
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            raise wrong("tools", "give each function a name of its own")
        if choice == "none":
            return []
        if isinstance(choice, AllowedChoice):
            allowed = choice.allowed_tools.names
            return [tool for tool in tools if tool.function.name in allowed]
        if not self.must_call:
            return tools
        if not tools:
            raise wrong("tool_choice", "there are no tools to choose")
        if isinstance(choice, (ToolChoice, CustomChoice)):
            tools = [tool for tool in tools if tool.function.name == choice.name]
            if not tools:
                fix = "it names a function that is not among the tools"
                param = f"tool_choice.{choice.type}.name"
                raise ApiError(400, f"tool_choice: {fix}", param=param)
        return tools

    def _known_tools(self) -> list[Tool]:
        return [
            tool.as_function() if isinstance(tool, CustomTool) else tool
            for tool in self.tools or ()
            if isinstance(tool, (Tool, CustomTool))
        ]

    @property
    def must_call(self) -> bool:
        """True if the answer has to be a call. Without functions and custom tools, it is none."""
        choice, given = self.tool_choice, self.tools or []
        named = {tool.function.name for tool in self._known_tools()}
        if isinstance(choice, AllowedChoice):
            allowed = choice.allowed_tools
            return allowed.mode == "required" and bool(named & allowed.names)
        if isinstance(choice, (ToolChoice, CustomChoice)):
            return True
        return choice == "required" and bool(named or not given)

    def constraint(self) -> ConstraintSpec | None:
        """Return the constraint on the output.

        A call that the model must make is a constraint, too.
        """
        wanted = super().constraint()
        tools = self.callable_tools()
        if wanted is not None and tools and wanted.type not in ("json_schema", "json_object"):
            fix = f"an answer with the constraint {wanted.type} cannot be a call: leave one out"
            raise wrong("tools", fix)
        if self.must_call:
            return ConstraintSpec(type="json_schema", value=call_schema(tools))
        if wanted is not None and wanted.type == "json_schema" and tools:
            return ConstraintSpec(type="json_schema", value=call_schema(tools, wanted.value))
        return wanted

    def calls(self, thinks: Callable[[], bool] = bool) -> CallReader:
        """Return a reader of the reasoning and the calls in an output.

        Args:
            thinks: returns whether the template has opened a block of reasoning; called when the
                output begins.

        Raises:
            ApiError: as :meth:`callable_tools`.
        """
        tools, apart = self.callable_tools(), self.separate_reasoning is not False
        functions = {tool.function.name: tool.function.parameters for tool in tools}
        custom = {tool.function.name for tool in tools if tool._custom}
        return CallReader(functions, self.parallel_tool_calls is not False, apart, thinks, custom)

    def prompt(self, template_has_tools: bool) -> PromptInput:
        """Return the conversation in the form for the model's template.

        Args:
            template_has_tools: whether the template shows tools and calls. If not, tools and calls
                become texts of messages.
        """
        tools = self.callable_tools()
        said, begun = self._said()
        messages, variables = to_wire(said, template_has_tools), self._variables()
        if not tools or template_has_tools:
            shown = offered(tools) if tools else None
            return PromptInput(messages=messages, begun=begun, tools=shown, variables=variables)
        told = instructions(tools)
        if messages[0]["role"] in ("system", "developer"):
            messages[0]["content"] += "\n\n" + told
        else:
            messages.insert(0, {"role": "system", "content": told})
        return PromptInput(messages=messages, begun=begun, variables=variables)

    def _said(self) -> tuple[list[Message], str | None]:
        """Return the messages to answer, and the beginning of the answer if the last one is that.

        Raises:
            ApiError: 400 if the answer should continue the last message, but cannot.
        """
        *before, last = self.messages
        goes_on = self.continue_final_message or False
        if self.add_generation_prompt is goes_on:
            fix = "give the opposite of continue_final_message, or leave it out"
            raise wrong("add_generation_prompt", fix)
        if not goes_on:
            return self.messages, None
        if last.role != "assistant" or not before:
            fix = "to go on with the last one, let it be the assistant's, behind another one"
            raise wrong("messages", fix)
        if last.tool_calls:
            raise wrong("messages", "the last one calls a tool: let the tool's result follow")
        return before, last.content


def to_wire(messages: Sequence[Message], template_has_tools: bool) -> list[dict[str, Any]]:
    """Return the messages as dictionaries for chat templates; see :meth:`ChatRequest.prompt`.

    Results follow the order of their calls, because most templates show no ids. Agents that run
    several tools at once send the results in the order in which the tools have ended.
    """
    made: list[Message] = []
    order: dict[str | None, int] = {}
    for are_results, run in groupby(messages, lambda one: one.role in ("tool", "function")):
        said = list(run)
        if are_results:
            said.sort(key=lambda one: order.get(one.tool_call_id, len(order)))
        order = {call.id: number for number, call in enumerate(said[-1].tool_calls or ())}
        made += said
    return [_for_template(message, template_has_tools) for message in made]


def _for_template(message: Message, template_has_tools: bool) -> dict[str, Any]:
    made = message.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
    role = "tool" if message.role == "function" else message.role
    made |= {"role": role, "content": message.content or ""}
    if message.tool_calls and template_has_tools:
        made["tool_calls"] = [for_template(call) for call in message.tool_calls]
    elif message.tool_calls:
        called = as_text(message.tool_calls)
        made["content"] = f"{message.content}\n{called}" if message.content else called
    return made
