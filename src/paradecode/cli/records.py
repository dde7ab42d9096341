"""The machine-readable forms of a completion and of the registry. Their fields are a contract."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from paradecode.completion import Completion
from paradecode.llm import LLM
from paradecode.methods.parts import Method, Part

SHOWN = (
    "forwards", "generated", "drafts", "drafted", "accepted", "mean_acceptance_length",
    "accepted_per_position", "prompt_tokens", "cached_tokens", "prefill_seconds",
    "decode_seconds", "target_seconds", "decoder_seconds", "tokens_per_second",
)  # fmt: skip
"""Names of a completion's counts and times, in the order in which they are printed."""


def completion_record(completion: Completion, llm: LLM) -> dict[str, Any]:
    """Return what ``paradecode generate --json`` prints for one output of `llm`."""
    stats = completion.stats.record()
    record: dict[str, Any] = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "model": llm.model,
        "decoder": str(llm.decoder),
        "backend": llm.backend.name,
        "stats": {name: stats[name] for name in SHOWN},
    }
    if completion.error is not None:
        record["error"] = str(completion.error)
    if completion.logprobs is not None:
        record["logprobs"] = [
            {"token": entry.token, "logprob": entry.logprob, "top": dict(entry.top)}
            for entry in completion.logprobs
        ]
    if completion.search is not None:
        cost = asdict(replace(completion.search, tree=()))
        del cost["tree"]
        others = [
            {"text": other.text, "finish_reason": other.finish_reason, "score": score}
            for other, score in zip(completion.alternatives, completion.search.scores[1:])
        ]
        record["search"] = {"score": cost.pop("scores")[0], **cost, "others": others}
    return record


def part_record(part: Part) -> dict[str, Any]:
    """Return one entry of ``paradecode methods --json``: a method, or a part without a family."""
    return {
        "name": part.name,
        "kind": part.kind,
        "family": part.family if isinstance(part, Method) else None,
        "guarantee": part.guarantee,
        "training": part.training,
        "paper": part.paper,
        "arxiv": part.arxiv,
        "url": part.url,
        "summary": part.summary,
        "aliases": list(part.aliases),
        "parameters": [
            {
                "name": parameter.name,
                "default": parameter.default,
                "low": parameter.low,
                "high": parameter.high,
                "choices": list(parameter.options),
                "help": parameter.help,
            }
            for parameter in part.parameters
        ],
    }
