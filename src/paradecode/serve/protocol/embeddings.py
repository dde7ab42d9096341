"""``/v1/embeddings``: the request."""

from __future__ import annotations

from typing import Literal

from paradecode.serve.protocol.completions import Prompts, prompt_inputs
from paradecode.serve.protocol.fields import Common
from paradecode.serve.wire import PromptInput


class EmbeddingsRequest(Common):
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None

    def prompts(self) -> list[PromptInput]:
        return prompt_inputs(self.input)
