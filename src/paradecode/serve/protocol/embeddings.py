"""The request of ``/v1/embeddings``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from paradecode.serve.protocol.completions import SomeTokenIds, prompt_inputs
from paradecode.serve.protocol.fields import Common, Text
from paradecode.serve.wire import PromptInput

MOST_INPUTS = 1 << 11
"""The most texts in one request, as in OpenAI's route for embeddings."""

Inputs = (
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
    | SomeTokenIds
    | Annotated[list[SomeTokenIds], Field(min_length=1, max_length=MOST_INPUTS)]
)


class EmbeddingsRequest(Common):
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """Refuse a list that is too long before its entries are checked.

        Otherwise each type that an entry may have would report an error.
        """
        many = isinstance(given, list) and len(given) > MOST_INPUTS
        if many and not isinstance(given[0], int):
            raise ValueError(f"give at most {MOST_INPUTS} inputs, not {len(given)}")
        return given

    def prompts(self) -> list[PromptInput]:
        return prompt_inputs(self.input)
