"""Fields of vLLM, SGLang, llama.cpp and OpenAI that clients send, and that have no effect here.

A field with a single allowed value asks for what this server does anyway; any other value would ask
for something else, and is refused. The other fields are for services that this server does not
have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from paradecode.serve.protocol.base import Body

Word = Annotated[str, StringConstraints(max_length=256)]
Nothing = Annotated[list[Any], Field(max_length=0)]


class Harmless(Body):
    """Fields that are accepted without effect."""

    # OpenAI's
    user: Word | None = None
    metadata: Annotated[dict[Word, Word], Field(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Word | None = None
    safety_identifier: Word | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    verbosity: Word | None = None
    # vLLM's and SGLang's
    request_id: Word | None = None
    rid: Word | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: Literal[False] | None = None
    no_stop_trim: Literal[False] | None = None
    detokenize: Literal[True] | None = None
    return_token_ids: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    logits_processors: Nothing | None = None
    truncate_prompt_tokens: None = None
    lora_path: None = None
    # llama.cpp's
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=1 << 16)] | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None


class HarmlessInChoices(Harmless):
    """Fields without effect of the routes that answer with choices."""

    reasoning_effort: Word | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    audio: None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    prompt_embeds: None = None
    suffix: Literal[""] | None = None
