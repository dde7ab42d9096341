"""Fields that the generating routes share, and how they become a worker's settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator

from paradecode.core.sampling import (
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
)  # fmt: skip
from paradecode.serve.errors import wrong
from paradecode.serve.protocol.base import Body
from paradecode.serve.protocol.constraints import Constrained
from paradecode.serve.protocol.content import Content
from paradecode.serve.protocol.harmless import Harmless, HarmlessInChoices
from paradecode.serve.protocol.search import Searching

Name = Annotated[str, StringConstraints(max_length=256)]
Text = Annotated[str, StringConstraints(max_length=1 << 21)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(max_length=1 << 18)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_LENGTH)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
BiasToken = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")]
Setting = bool | int | float | Annotated[str, StringConstraints(max_length=1024)] | None
Settings = Annotated[dict[Name, Setting | list[Name]], Field(max_length=32)]
Limit = Annotated[
    Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None,
    BeforeValidator(lambda most: None if most == -1 else most),  # In llama.cpp, -1 is no limit.
]
Budget = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
"""The most tokens of reasoning. -1 is no bound, as in llama.cpp."""
EFFORTS = {"none": 0, "minimal": 0, "low": 1024, "medium": 4096}
"""Effort -> the most tokens of reasoning. A higher effort has no bound."""
Spec = Annotated[str, StringConstraints(max_length=1024)]

SAMPLING = {
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "max_tokens", "ignore_eos", "stop", "stop_token_ids",
    "seed", "n", "logit_bias",
}  # fmt: skip
"""Fields of SamplingParams that have the same name in requests."""
ONLY_BEST = 1e-9
"""A ``top_p`` above 0 that is below the probability of the likeliest token in any vocabulary."""
LLAMA_CPP = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""llama.cpp's names of fields -> this server's names."""


class Common(Harmless):
    """Fields that every generating request has, beside its prompt."""

    model: Name | None = Field(None, description="A served name; the first model if left out.")
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1, description="0 keeps the likeliest token.")
    speculative: Spec | Settings | None = Field(
        None, description="Method of this request: a spec, `none`, or an object with `method`."
    )
    diffusion: Settings | None = Field(
        None, description="Settings of a diffusion model's method, and its `method`."
    )
    priority: int | None = Field(None, ge=-100, le=100, description="Smaller goes first.")
    deadline: float | None = Field(None, gt=0, le=86400, description="Seconds.")
    timeout: float | None = Field(None, gt=0, le=86400, description="The same as `deadline`.")
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        None, description="Prompts are shared in the cache only with requests of the same salt."
    )
    include_metrics: bool | None = Field(None, description="Report forwards, drafts and times.")

    @property
    def thoughts(self) -> int | None:
        """The most tokens of reasoning, or None for no bound."""
        return None

    @property
    def about_thoughts(self) -> list[str]:
        """Places of the request's fields that have an effect only if the model reasons."""
        return []

    def sampling(self) -> dict[str, Any]:
        """Return fields of SamplingParams: those that the request sets, and OpenAI's defaults."""
        chosen = {"temperature": 1.0, **self.model_dump(include=SAMPLING, exclude_none=True)}
        return {**chosen, "top_p": ONLY_BEST} if chosen.get("top_p") == 0 else chosen


class StreamOptions(Body):
    include_usage: bool | None = None


class Prediction(Body):
    type: Literal["content"]
    content: Content


class Sampled(Common, HarmlessInChoices, Constrained, Searching):
    """Fields that requests for chats and completions have beside the common ones."""

    max_tokens: Limit = None
    n_predict: int | None = Field(None, ge=-1, le=MAX_TOKENS, description="`max_tokens`.")
    n: int | None = Field(None, ge=1, le=MAX_N)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    prompt_logprobs: TopLogprobs | None = Field(None, description="Of the prompt's own tokens.")
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: (
        Annotated[
            dict[BiasToken, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_LOGIT_BIAS),
        ]
        | None
    ) = None
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="`repetition_penalty`.")
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    provisional: bool | None = Field(
        None, description="Stream the undecided canvas of a diffusion model, too."
    )

    prediction: Prediction | None = None
    stream_options: StreamOptions | None = None

    def sampling(self) -> dict[str, Any]:
        chosen = super().sampling()
        for other, name in LLAMA_CPP.items():
            value = getattr(self, other)
            if value is None:
                continue
            if name in chosen:
                raise wrong(other, f"it is {name}: give one of them")
            if value != -1:  # In llama.cpp, -1 is no limit.
                chosen[name] = value
        return chosen

    @property
    def predicted(self) -> str | None:
        return None if self.prediction is None else self.prediction.content

    @field_validator("logit_bias")
    @classmethod
    def _one_bias_a_token(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        if bias is not None and len({int(token) for token in bias}) < len(bias):
            raise ValueError("name each token once")
        return bias
