"""What the model says of prompts themselves: their log-probabilities, their hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import Request

from paradecode.serve.errors import ApiError
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.protocol.fields import Common
from paradecode.serve.sse import unless_gone
from paradecode.serve.wire import PromptInput, TokenLogprobs


async def read(
    request: Request,
    body: Common,
    prompts: Sequence[PromptInput],
    what: Literal["logprobs", "embedding"],
    top: int = 0,
) -> tuple[str, list[WholeOutput]]:
    """The model's name, and what was read of each prompt.

    Args:
        top: the best tokens to name beside each of a prompt's.

    Raises:
        ApiError: for a prompt that is refused, or when the time was over before its end.
    """
    job = Generation(request, body)
    job.ask(prompts, {"max_tokens": 1}, reads=what, top=top)
    outputs = await unless_gone(request, job.outputs())
    if any(output.done.finish_reason == "deadline" for output in outputs):
        raise ApiError(408, "the deadline came before the prompt was read")
    return job.model.name, outputs


def prompt_logprobs(entries: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
    """vLLM's form: for each token an object by token id, the token itself first."""
    return [None, *map(_by_id, entries[1:])]


def _by_id(entry: TokenLogprobs) -> dict[str, Any]:
    ranks = {candidate.token: rank for rank, candidate in enumerate(entry.top, 1)}
    return {
        str(one.token): {
            "logprob": one.logprob, "rank": ranks.get(one.token), "decoded_token": one.text,
        }
        for one in (entry.chosen, *entry.top)
    }  # fmt: skip
