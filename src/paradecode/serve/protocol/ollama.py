"""Requests of Ollama's routes, and how they become requests of OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from paradecode.serve.protocol.base import Body, validated
from paradecode.serve.protocol.chat import MAX_MESSAGES, ChatRequest
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.protocol.fields import Name, Text
from paradecode.serve.protocol.tools import MAX_TOOLS, AnyTool, FunctionName

LATEST = ":latest"
"""The tag that Ollama's clients add to the name of a model without one."""
ENDLESS = (-1, -2)
"""Values of ``num_predict`` for no limit."""


class Options(Body):
    """Settings of the output. The chat route checks their values."""

    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings under the chat route's names."""
        given = self.model_dump(exclude_none=True)
        most = given.pop("num_predict", None)
        return given if most is None or most in ENDLESS else {**given, "max_tokens": most}


class OllamaFunction(Body):
    name: FunctionName
    arguments: dict[str, Any]


class OllamaCall(Body):
    function: OllamaFunction


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    tool_name: Name | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=128)] | None = None

    def said(self) -> dict[str, Any]:
        """Return the message in the form of the chat route."""
        made: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.tool_name is not None:
            made["name"] = self.tool_name
        if self.tool_calls:
            made["tool_calls"] = [_call(index, call) for index, call in enumerate(self.tool_calls)]
        return made


class OllamaModel(Body):
    """A request about one model."""

    model: Name

    @property
    def name(self) -> str:
        return self.model.removesuffix(LATEST)


class OllamaRequest(OllamaModel):
    """Fields that the generating routes share."""

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | Name | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of the output under the chat route's names."""
        given = {"model": self.name, "stream": self.stream is not False}
        given |= {} if self.options is None else self.options.settings()
        if self.format == "json":
            given["response_format"] = {"type": "json_object"}
        elif isinstance(self.format, Mapping):
            named = {"name": "format", "schema": self.format}
            given["response_format"] = {"type": "json_schema", "json_schema": named}
        return given

    def thinking(self) -> dict[str, Any]:
        """Return the settings of reasoning under the chat route's names."""
        if isinstance(self.think, str):
            return {"reasoning_effort": self.think}
        if self.think is None:
            return {}
        return {"chat_template_kwargs": {"enable_thinking": self.think}}


class OllamaChat(OllamaRequest):
    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None

    def asked(self) -> ChatRequest | None:
        """Return the chat request, or None for a request that only loads the model.

        Raises:
            ApiError: 400 if the chat route would refuse the request.
        """
        if not self.messages:
            return None
        given = {**self.settings(), **self.thinking()}
        given["messages"] = [message.said() for message in self.messages]
        if self.tools:
            given["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        return validated(ChatRequest, given)


class OllamaGenerate(OllamaRequest):
    prompt: Text | None = None
    system: Text | None = None
    suffix: Text | None = None
    raw: bool | None = None

    def asked(self) -> ChatRequest | CompletionRequest | None:
        """Return the request for a chat, or with ``raw`` or ``suffix`` for a completion.

        The result is None for a request that only loads the model.

        Raises:
            ApiError: 400 if the route of that request would refuse it.
        """
        if not self.prompt:
            return None
        if self.raw or self.suffix:
            given = {**self.settings(), "prompt": self.prompt, "suffix": self.suffix}
            if "max_tokens" not in given:
                given["n_predict"] = -1
            return validated(CompletionRequest, given)
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.prompt}]
        return validated(ChatRequest, {**self.settings(), **self.thinking(), "messages": messages})


def _call(index: int, call: OllamaCall) -> dict[str, Any]:
    written = json.dumps(call.function.arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": written}
    return {"id": f"call_{index}", "type": "function", "function": function}
