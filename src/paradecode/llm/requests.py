"""Make engine requests from texts, conversations and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Union, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.constraints.compile import Compiler
from paradecode.core.checks import known, text
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import ALIASES, SamplingParams
from paradecode.engine.prompt import CandidateReader, PromptReader, reading_request
from paradecode.engine.request import GenerationRequest, token_ids
from paradecode.llm.settings import RequestSettings
from paradecode.methods.choice import Decoder, check_draft_model, spec_for, with_settings
from paradecode.methods.specs import Spec
from paradecode.models.chat import MAX_TEMPLATE, ChatTemplate, check_messages, find_template
from paradecode.models.checkpoint import Checkpoint

Said = Union[str, Sequence[Mapping[str, Any]]]
"""A user message as text, or a conversation: a list of ``{"role": ..., "content": ...}``."""


class RequestMaker:
    """Make requests for one model. It does not touch the engine, so any thread may use it.

    Args:
        checkpoint: the model.
        decoder: the method for requests that name none.
        draft_model: name of the loaded draft model, or None.

    Attributes:
        model: the model's name.
    """

    def __init__(self, checkpoint: Checkpoint, decoder: Decoder, draft_model: str | None) -> None:
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        self.chat_template, self.model = checkpoint.chat_template, checkpoint.config.name
        self.decoder, self.draft_model = self.spec(decoder), draft_model
        self._norm = checkpoint.weights["norm"].float32()
        self._compiler = Compiler(self.tokenizer, self.config.vocab_size, self.config.eos_tokens)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of methods that can decode this model."""
        able = {
            "autoregressive": self.config.writes,
            "diffusion": self.config.mask_token is not None or self.config.canvas_length > 0,
        }
        return tuple(family for family, can in able.items() if can)

    def requests(
        self, ids: list[int], params: SamplingParams | None, settings: Mapping[str, Any]
    ) -> list[GenerationRequest]:
        """Make the requests of :meth:`paradecode.LLM.complete`: one for each of the ``n`` outputs.

        Raises:
            InvalidInput: a setting cannot be used; the engine checks some settings later.
        """
        own = {field.name for field in fields(SamplingParams)} | ALIASES.keys()
        sampling = {name: value for name, value in settings.items() if name in own}
        rest = {name: value for name, value in settings.items() if name not in own}
        if params is not None and sampling:
            raise InvalidInput("params", sorted(sampling), "give params or keywords, not both")
        if params is None:
            params = SamplingParams.from_mapping(sampling)
        elif not isinstance(params, SamplingParams):
            raise InvalidInput("params", params, "give SamplingParams, or its fields as keywords")
        decoder = self.decoder
        if "decoder" in rest:
            decoder = self.spec(rest.pop("decoder"))
        decoder = with_settings(decoder, rest)
        check_draft_model(decoder, self.draft_model)
        if "stream" in rest:
            raise InvalidInput("stream", rest["stream"], "call stream(...), which yields pieces")
        known(own | RequestSettings.__annotations__.keys(), sorted(rest), "setting")
        prompt = token_ids(ids)
        if rest.get("prediction") is not None:
            rest["prediction"] = self._prediction(rest["prediction"])
        if rest.get("constraint") is not None:
            rest["constraint"] = self._compiler.compile(rest["constraint"], decoder.method.family)
        return [
            GenerationRequest(prompt, decoder, params.for_choice(index), **rest)
            for index in range(params.n)
        ]

    def reading(
        self, ids: list[int], top: int | None = None, hidden: bool = False, **settings: Any
    ) -> GenerationRequest:
        """Make a request that reads a prompt; its ``decoder`` is a :class:`PromptReader`.

        Args:
            top: see :meth:`paradecode.LLM.score`; None computes no scores.
            hidden: whether to collect hidden states.
            settings: other fields of the request.
        """
        reader = PromptReader(top, self._norm if hidden else None, self.config.norm_eps)
        return reading_request(self.config, ids, reader, **settings)

    def ranking(
        self, ids: list[int], candidates: Sequence[str | Sequence[int]], **settings: Any
    ) -> GenerationRequest:
        """Make a request that scores continuations of ``ids``.

        Its ``decoder`` is a :class:`CandidateReader`. ``settings`` are other fields of the request.
        """
        found = [
            token_ids(self._continuation(candidate), "candidates", self.config.vocab_size)
            for candidate in candidates
        ]
        reader = CandidateReader(found)
        if len(ids) + (longest := max(map(len, found))) > self.config.context_length:
            fix = f"context and candidate have at most {self.config.context_length} tokens together"
            raise InvalidInput("candidates", f"{longest} tokens", fix)
        return reading_request(self.config, ids, reader, **settings)

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation in the model's own format.

        Args:
            tools: descriptions of functions that the model may call, for templates that show them.
            variables: other variables that the template reads, for example ``enable_thinking``.
        """
        if self.chat_template is None:
            raise InvalidInput("model", self.model, "it has no chat template; use complete")
        return self.chat_template.encode(self.tokenizer, messages, tools=tools, **variables)

    def conversation(
        self,
        messages: Said,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation, or of one user message.

        Args:
            system, tools, chat_template: see :meth:`paradecode.LLM.chat`.

        Raises:
            InvalidInput: messages or settings cannot be used.
            InvalidModel: the template is broken.
        """
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if system is not None and isinstance(said, (list, tuple)):
            if said and isinstance(said[0], Mapping) and said[0].get("role") == "system":
                fix = "the conversation begins with a system message; leave one of them out"
                raise InvalidInput("system", system, fix)
            said = [{"role": "system", "content": system}, *said]
        template = self.chat_template
        if chat_template is not None:
            template = self.template(chat_template)
        if template is None:
            check_messages(said)  # What is no conversation needs no template.
            fix = (
                "it has no chat template: continue a raw text with complete(text) or "
                "stream(encode(text)), or give chat_template="
            )
            raise InvalidInput("model", self.model, fix)
        if tools and not template.shows("tools"):
            fix = "the chat template shows no tools; give one that does as chat_template="
            raise InvalidInput("tools", f"{len(tools)} tools", fix)
        return template.encode(self.tokenizer, said, tools=tools)

    def template(self, given: str) -> ChatTemplate:
        """Return the template that a caller gives: Jinja text, or a name of the model's own."""
        source = text(MAX_TEMPLATE)("chat_template", given)
        if self.chat_template is not None and given in self.chat_template.named:
            return self.chat_template.named[given]
        template = find_template({"default": source}, self.tokenizer)
        assert template is not None
        return template

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a raw text, at least one."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            return ids or [self._start_token()]
        given: object = prompt
        if isinstance(given, (bytes, bytearray)) or not isinstance(given, (Sequence, np.ndarray)):
            raise InvalidInput("prompt", given, "give a text or a list of token ids")
        return list(prompt)

    def spec(self, decoder: Decoder) -> Spec:
        """Return the method that a caller names; raises InvalidInput if the model cannot use it."""
        return spec_for(decoder, self.model, self.families, self.config.decoder)

    def _start_token(self) -> int:
        """Return the token that replaces an empty prompt."""
        for token in (self.config.bos_token, *self.config.eos_tokens):
            if token is not None:
                return token
        raise InvalidInput("prompt", "", "give at least one token: the model has no BOS")

    def _continuation(self, text: str | Sequence[int]) -> Sequence[int]:
        """Return the token ids of a text after a prompt; no part of it becomes a control token."""
        if isinstance(text, str):
            return self.tokenizer.encode(text, special=False, parse_special=False)
        return text

    def _prediction(self, given: Any) -> NDArray[np.int32]:
        if not isinstance(given, (str, list, tuple, np.ndarray)):
            raise InvalidInput("prediction", given, "give a text or a list of token ids")
        ids = self._continuation(given)  # type: ignore[arg-type]
        return token_ids(ids, "prediction") if len(ids) else np.empty(0, np.int32)


def is_one(messages: object) -> bool:
    """Return whether this is one text or conversation, and not a list of them.

    An empty list is a conversation, which is refused later.
    """
    if isinstance(messages, (list, tuple)):
        return all(isinstance(message, Mapping) for message in messages)
    return isinstance(messages, str)


def each_of(messages: object) -> list[Said]:
    """Return the conversations in :meth:`paradecode.LLM.chat`'s argument; raises InvalidInput."""
    if is_one(messages):
        return [cast(Said, messages)]
    if not isinstance(messages, Sequence):
        fix = "give a text, a list of {'role': ..., 'content': ...}, or a list of these"
        raise InvalidInput("messages", messages, fix)
    return list(messages)
