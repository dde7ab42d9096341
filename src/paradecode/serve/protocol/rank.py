"""The requests of ``/v1/rank`` and ``/rerank``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from paradecode.serve.protocol.base import Body
from paradecode.serve.protocol.completions import SomeTokenIds
from paradecode.serve.protocol.fields import Common, Text
from paradecode.serve.wire import PromptInput

MOST_CANDIDATES = 1 << 10
SomeText = Annotated[Text, Field(min_length=1)]


class RankRequest(Common):
    """A request to rank candidates, each of which continues the same context."""

    context: SomeText | SomeTokenIds
    candidates: Annotated[
        list[SomeText | SomeTokenIds], Field(min_length=1, max_length=MOST_CANDIDATES)
    ]
    top_n: int | None = Field(None, ge=1, description="Only the best so many.")
    return_logprobs: bool | None = Field(None, description="Of each token of a candidate.")

    def prompt(self) -> PromptInput:
        if isinstance(self.context, str):
            return PromptInput(text=self.context)
        return PromptInput(tokens=self.context)


class Document(Body):
    text: SomeText


class RerankRequest(Common):
    """A request to rank documents by their fit to a query, in vLLM's, Jina's and Cohere's form."""

    query: SomeText
    documents: Annotated[list[SomeText | Document], Field(min_length=1, max_length=MOST_CANDIDATES)]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    max_chunks_per_doc: Any | None = Field(None, description="Without effect.")
    max_tokens_per_doc: Any | None = Field(None, description="Without effect.")

    def texts(self) -> list[str]:
        return [each.text if isinstance(each, Document) else each for each in self.documents]
