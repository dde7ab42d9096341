"""Fields of answers that several routes share: usage, metrics and finish reasons."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from paradecode.serve.wire import BranchNews, Done, OutputChunk

STARTED = int(time.time())
"""When the server started, in seconds since 1970."""


def usage(done: Sequence[Done], n: int) -> dict[str, Any]:
    """Return OpenAI's ``usage`` for all outputs. Each prompt counts once, for all its outputs.

    Args:
        done: the last event of every output, in order.
        n: number of outputs of each prompt.
    """
    prompts = [entry.stats for entry in done[::n]]
    predicted = [entry.stats for entry in done if entry.predicted]
    prompt = sum(stats.prompt_tokens for stats in prompts)
    completion = sum(_tokens(entry) for entry in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(stats.accepted for stats in predicted),
            "rejected_prediction_tokens": sum(stats.rejected for stats in predicted),
            "reasoning_tokens": sum(entry.reasoning for entry in done),
        },
    }


def _tokens(done: Done) -> int:
    """Return the number of an output's tokens.

    A search's first output counts the tokens of all branches, and its other outputs count 0.
    """
    if done.search is None:
        return done.stats.generated
    return done.search.tokens if done.index == 0 else 0


def searches(done: Sequence[Done]) -> Any:
    """Return the cost of each search with its score: one object for one output, else a list."""
    found = [vars(entry.search) for entry in done if entry.search is not None]
    return found[0] if len(found) == 1 else found


def branch(news: BranchNews) -> dict[str, Any]:
    """Return the object ``paradecode`` of an event about a branch."""
    told = {name: value for name, value in vars(news).items() if name not in ("id", "index")}
    return {"branch": told}


def metrics(done: Sequence[Done]) -> Any:
    """Return how the outputs were decoded: one object for one output, else a list."""
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
    """Return ``finish_reason``, and ``stop_reason`` if OpenAI has no word for the reason."""
    if done.finish_reason == "deadline":
        return {"finish_reason": "length", "stop_reason": "deadline"}
    return {"finish_reason": done.finish_reason}


def progress(chunk: OutputChunk) -> dict[str, Any]:
    """Return the object ``paradecode`` of a streamed chunk."""
    commits = [
        {"forward": part.forward, "tokens": len(part.tokens), "text": part.text}
        for part in chunk.parts()
    ]
    seen = {"forward": chunk.forward, "tokens": chunk.tokens, "commits": commits}
    return seen if chunk.canvas is None else {**seen, "canvas": chunk.canvas}


def now() -> int:
    return int(time.time())
