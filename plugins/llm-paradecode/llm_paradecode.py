"""A plugin that gives Paradecode's models to the command ``llm``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from pydantic import Field

import llm
from paradecode import LLM, ParadecodeError

SETTINGS = ("decoder", "max_tokens", "temperature", "top_p", "seed")


@lru_cache(maxsize=1)
def opened(model: str | None) -> LLM:
    """Open the model of that name; later calls for the same name reuse it."""
    return LLM(model)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the model ``paradecode`` with ``llm``."""
    register(Paradecode())


class Paradecode(llm.Model):
    """Any model that Paradecode opens; the option ``model`` names it."""

    model_id = "paradecode"
    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """Settings of an answer; Paradecode checks them."""

        model: str | None = Field(None, description="Name, .gguf file, folder, or hub name")
        decoder: str | None = Field(None, description="Method, such as suffix")
        max_tokens: int | None = Field(None, description="Most tokens of the answer")
        temperature: float | None = Field(None, description="0 is greedy")
        top_p: float | None = Field(None, description="Nucleus mass")
        seed: int | None = Field(None, description="Makes sampling repeatable")

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str]:
        """Yield the answer in pieces, or as one piece if ``stream`` is false.

        Raises:
            llm.ModelError: with Paradecode's error message.
        """
        options = prompt.options
        given = {name: getattr(options, name) for name in SETTINGS}
        settings: dict[str, Any] = {"max_tokens": 1024} | {
            name: value for name, value in given.items() if value is not None
        }
        if prompt.schema:
            settings["constraint"] = {"type": "json_schema", "value": prompt.schema}
        try:
            pieces = []
            for chunk in opened(options.model).stream(messages_of(prompt), **settings):
                if chunk.completion is not None:
                    stats = chunk.completion.stats
                    response.set_usage(input=stats.prompt_tokens, output=stats.generated)
                if stream:
                    yield chunk.text
                pieces.append(chunk.text)
            if not stream:
                yield "".join(pieces)
        except ParadecodeError as error:
            raise llm.ModelError(str(error)) from error


def messages_of(prompt: llm.Prompt) -> list[dict[str, str]]:
    """Return the messages of the conversation, up to and including the prompt."""
    return [
        {
            "role": message.role,
            "content": "".join(getattr(part, "text", "") for part in message.parts),
        }
        for message in prompt.messages
    ]
