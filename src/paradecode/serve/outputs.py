"""Parts of answers that several routes share: usage, metrics, reasons, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from paradecode.serve.wire import Done, OutputChunk, ScoredToken, TokenLogprobs


def usage(done: Sequence[Done], n: int) -> dict[str, Any]:
    """OpenAI's ``usage`` of all outputs; each prompt counts once, however many outputs it has.

    Args:
        done: of every output, in order.
        n: outputs of each prompt.
    """
    prompts = [entry.stats for entry in done[::n]]
    predicted = [entry.stats for entry in done if entry.predicted]
    prompt = sum(stats.prompt_tokens for stats in prompts)
    completion = sum(entry.stats.generated for entry in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(stats.accepted for stats in predicted),
            "rejected_prediction_tokens": sum(stats.rejected for stats in predicted),
            "reasoning_tokens": 0,
        },
    }


def metrics(done: Sequence[Done]) -> Any:
    """How the outputs were decoded: an object for one, a list for several."""
    found = [_metrics(entry) for entry in done]
    return found[0] if len(found) == 1 else found


def _metrics(done: Done) -> dict[str, Any]:
    return {
        "method": done.method,
        **done.stats.counts(),
        "tokens": done.stats.generated,
        "rejected": done.stats.rejected,
        "diffusion_steps": done.diffusion_steps,
        "seconds": done.stats.seconds(),
        "time_to_first_token": done.time_to_first_token,
    }


def reason(done: Done) -> dict[str, Any]:
    """``finish_reason``, and ``stop_reason`` where OpenAI has no word for what happened."""
    if done.finish_reason == "deadline":
        return {"finish_reason": "length", "stop_reason": "deadline"}
    return {"finish_reason": done.finish_reason}


def progress(chunk: OutputChunk) -> dict[str, Any]:
    """The ``paradecode`` object of a streamed chunk."""
    seen: dict[str, Any] = {"forward": chunk.forward, "tokens": chunk.tokens}
    return seen if chunk.canvas is None else {**seen, "canvas": chunk.canvas}


def chat_logprobs(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    content = [
        {**_candidate(entry.chosen), "top_logprobs": [_candidate(c) for c in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    entries: Sequence[TokenLogprobs], offset: int, prompt: bool = False
) -> dict[str, Any]:
    """The older form.

    Args:
        offset: characters of the tokens before these.
        prompt: the first token is a prompt's, and has no log-probability.
    """
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.chosen.text)
    values: list[float | None] = [entry.chosen.logprob for entry in entries]
    # Of tokens with one text the likeliest is told.
    top: list[Any] = [{c.text: c.logprob for c in reversed(entry.top)} for entry in entries]
    if prompt:
        values[0] = top[0] = None
    return {
        "tokens": [entry.chosen.text for entry in entries],
        "token_logprobs": values,
        "top_logprobs": top,
        "text_offset": offsets,
    }


def _candidate(found: ScoredToken) -> dict[str, Any]:
    return {"token": found.text, "logprob": found.logprob, "bytes": found.bytes}


def now() -> int:
    return int(time.time())
