"""The keyword settings of calls, for editors and type checkers; the calls check the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from paradecode.llm.progress import Tick
from paradecode.methods.choice import Decoder
from paradecode.search.scorers.scorer import Scorer


class SamplingSettings(TypedDict, total=False):
    """The fields of :class:`paradecode.SamplingParams`."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    seed: int | None
    n: int
    logprobs: int | None


class RequestSettings(TypedDict, total=False):
    """The settings of a request other than its sampling; see :meth:`paradecode.LLM.complete`."""

    priority: int
    deadline: float | None
    salt: str
    owner: str
    prediction: str | Sequence[int] | None
    constraint: Mapping[str, Any] | None


class Settings(SamplingSettings, RequestSettings, total=False):
    """The settings of :meth:`paradecode.LLM.complete`.

    A call also takes every setting of its method. Only two of those are named here, which the
    diffusion models' own scripts use; others can be written into ``decoder``.
    """

    decoder: Decoder
    search: str | None
    scorer: Scorer | Mapping[str, Any] | None
    progress: Tick | bool
    gen_length: int
    steps: int
    block_length: int


class ChatSettings(Settings, total=False):
    """The settings of :meth:`paradecode.LLM.chat`.

    Attributes:
        system: text of a message before the conversation.
        tools: descriptions of the functions that the model may call, for the template to show.
        chat_template: Jinja text, or the name of one of the model's templates, in place of its
            usual one.
    """

    system: str | None
    tools: Sequence[Mapping[str, Any]] | None
    chat_template: str | None


CHAT_SETTINGS = ChatSettings.__annotations__.keys() - Settings.__annotations__.keys()
