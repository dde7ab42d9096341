"""Read prompts without continuing them, for their log-probabilities or hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import Request

from paradecode.serve.errors import ApiError
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.protocol.fields import Common
from paradecode.serve.sse import unless_gone
from paradecode.serve.wire import PromptInput


async def read(
    request: Request,
    body: Common,
    prompts: Sequence[PromptInput],
    what: Literal["logprobs", "embedding", "candidates"],
    top: int = 0,
    copies: int = 1,
    candidates: Sequence[str | list[int]] = (),
) -> tuple[str, list[WholeOutput]]:
    """Return the model's name, and the result of reading each prompt.

    Args:
        top: number of most likely tokens to report beside each token of a prompt.
        copies: how many times the answer repeats the results.
        candidates: continuations of each prompt.

    Raises:
        ApiError: if a prompt is refused, or if the deadline passes before it is read.
    """
    job = Generation(request, body)
    job.copies = copies
    job.ask(prompts, {"max_tokens": 1}, reads=what, top=top, candidates=[*candidates])
    outputs = await unless_gone(request, job.outputs())
    if any(output.done.finish_reason == "deadline" for output in outputs):
        raise ApiError(408, "the deadline came before the prompt was read")
    return job.model.name, outputs
