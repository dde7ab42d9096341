"""Classes that describe answers in the OpenAPI document. Routes build answers as plain objects."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    type: Literal["error"]
    error: ErrorBody


class PromptDetails(BaseModel):
    cached_tokens: int


class CompletionDetails(BaseModel):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class AnyChoice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: Literal["deadline"] | None = None
    logprobs: dict[str, Any] | None


class TextChoice(AnyChoice):
    text: str
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatChoice(AnyChoice):
    message: AnswerMessage


class AnyAnswer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    metrics: dict[str, Any] | list[dict[str, Any]] | None = None
    search: dict[str, Any] | list[dict[str, Any]] | None = None


class ChatCompletion(AnyAnswer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class TextCompletion(AnyAnswer):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class StreamedCommit(BaseModel):
    """The text and the number of tokens that one forward decided in a chunk."""

    forward: int
    tokens: int
    text: str


class StreamedProgress(BaseModel):
    """Which forwards decided a chunk, and the undecided canvas after the output."""

    forward: int
    tokens: list[int]
    commits: list[StreamedCommit]
    canvas: list[str | None] | None = None


class StreamedChoices(BaseModel):
    """The data of a streamed event of a chat or a text completion."""

    id: str
    object: Literal["chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage | None = None
    metrics: dict[str, Any] | list[dict[str, Any]] | None = None
    search: dict[str, Any] | list[dict[str, Any]] | None = None
    paradecode: StreamedProgress | dict[Literal["branch"], dict[str, Any]] | None = None


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class MessageAnswer(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]
    metrics: dict[str, Any] | None = None


class CountedTokens(BaseModel):
    input_tokens: int


class Infilled(BaseModel):
    content: str
    stop: Literal[True]
    model: str
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    truncated: bool
    tokens_evaluated: int
    tokens_predicted: int
    tokens_cached: int


class ServerProperties(BaseModel):
    model_alias: str
    total_slots: int
    default_generation_settings: dict[str, int]
    build_info: str


class Slot(BaseModel):
    id: int
    n_ctx: int
    is_processing: bool


class Embedded(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedded]
    model: str
    usage: dict[str, int]


class RankedCandidate(BaseModel):
    index: int
    mean: float
    total: float
    tokens: int
    logprobs: list[float] | None = None


class RankedList(BaseModel):
    object: Literal["list"]
    id: str
    data: list[RankedCandidate]
    model: str
    usage: dict[str, int]


class RerankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankedList(BaseModel):
    object: Literal["list"]
    id: str
    results: list[RerankedDocument]
    model: str
    usage: dict[str, int]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Templated(BaseModel):
    prompt: str


class Detokenized(BaseModel):
    prompt: str
    content: str


class ModelStatus(BaseModel):
    value: Literal["unloaded", "loading", "loaded"]


class ModelCard(BaseModel):
    """A model. What only its workers know is missing before it is loaded for the first time."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: ModelStatus | None = None
    max_model_len: int | None = None
    families: list[str] = Field(default_factory=list)
    decoder: str | None = None
    draft_model: bool = False
    chat: bool = False


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok"]


class WorkerBlocks(BaseModel):
    worker: str
    whole: bool
    stored: list[str]
    removed: list[str]
    running: int
    waiting: int
    waiting_tokens: int
    batch: int
    blocks: int
    held_blocks: int


class CacheBlocks(BaseModel):
    block_size: int
    since: str
    workers: list[WorkerBlocks]


class OllamaError(BaseModel):
    error: str


class OllamaList(BaseModel):
    models: list[dict[str, Any]]


class OllamaShown(BaseModel):
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaAnswer(BaseModel):
    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length", "load"]
    message: dict[str, Any] | None = None
    response: str | None = None


class Version(BaseModel):
    version: str
