"""Runs Paradecode through its public streaming call."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from protocol import Answer, Settings, Stopwatch, answer_requests


def load(settings: Settings) -> Answer:
    from paradecode.engine.engine import Limits
    from paradecode.llm import LLM

    # The prefix cache is off, because every round has the same prompts.
    limits = Limits(batch=1, kv_tokens=settings["context"] + 256, prefix_cache=False)
    llm = LLM(
        settings["model"],
        decoder=settings["decoder"],
        backend=settings["backend"],
        threads=settings["threads"],
        limits=limits,
    )

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        params: Settings = {
            "max_tokens": asked["max_tokens"],
            "temperature": settings.get("temperature", 0.0),
            "seed": 0,  # Some methods draw noise at temperature 0 as well.
            "ignore_eos": True,  # The stop tokens are given, the same for every engine.
            "stop_token_ids": asked["stop_token_ids"],
        }
        out: list[int] = []
        counts: dict[str, Any] = {}
        watch = Stopwatch()
        for chunk in llm.stream(asked["prompt_token_ids"], **params, salt=asked["tenant"]):
            out += chunk.token_ids
            if out:
                watch.first(len(out))
            if chunk.completion is not None:
                counts = chunk.completion.stats.counts()
        return {**asdict(watch.reply(out)), "counts": counts}

    return answer


if __name__ == "__main__":
    answer_requests(load, ["paradecode", "numpy", "torch"])
