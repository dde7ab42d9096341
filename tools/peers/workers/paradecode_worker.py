"""Paradecode itself, through its public streaming call."""

from __future__ import annotations

from protocol import Generate, Reply, Settings, Stopwatch, serve


def load(settings: Settings) -> Generate:
    from paradecode.engine.engine import Limits
    from paradecode.llm import LLM

    # The prefix cache is off: every round brings the same prompts.
    limits = Limits(batch=1, kv_tokens=settings["context"] + 256, prefix_cache=False)
    llm = LLM(
        settings["model"],
        decoder=settings["decoder"],
        backend=settings["backend"],
        threads=settings["threads"],
        limits=limits,
    )

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        params: Settings = {
            "max_tokens": max_tokens,
            "ignore_eos": True,  # The stop tokens are named, the same for every engine.
            "stop_token_ids": list(stops),
        }
        out: list[int] = []
        watch = Stopwatch()
        for chunk in llm.stream(prompt, **params):
            out += chunk.token_ids
            if out:
                watch.first(len(out))
        return watch.reply(out)

    return generate


if __name__ == "__main__":
    serve(load, ["paradecode", "numpy", "torch"])
