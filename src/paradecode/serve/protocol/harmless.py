"""Fields that may have only the value that asks for what this server does anyway.

Any other value would ask for something else, so it is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paradecode.serve.protocol.base import Body, No, Yes


class Harmless(Body):
    """Fields of vLLM and SGLang with one allowed value."""

    skip_special_tokens: Yes | None = None
    include_stop_str_in_output: No | None = None
    no_stop_trim: No | None = None
    detokenize: Yes | None = None
    return_token_ids: No | None = None
    return_tokens_as_token_ids: No | None = None
    return_hidden_states: No | None = None


class HarmlessInChoices(Harmless):
    """Fields with one allowed value, in requests that are answered with choices."""

    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    function_call: Literal["none", "auto"] | None = None
