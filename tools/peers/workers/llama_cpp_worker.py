"""Runs llama.cpp through llama-cpp-python: a plain loop, or the binding's prompt lookup."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from protocol import Generate, Reply, Settings, Stopwatch, serve, system

BATCH = 512


def load(settings: Settings) -> Generate:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = settings.get("lookup")
    model = llama_cpp.Llama(
        model_path=settings["model"],
        n_ctx=settings["context"],
        n_batch=BATCH,
        n_threads=settings["threads"],
        n_threads_batch=settings["threads"],
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None,
        verbose=False,
    )
    system["info"] = llama_cpp.llama_print_system_info().decode()

    def with_lookup(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        model.reset()  # Otherwise the cache would hold the prompt from an earlier round.
        out: list[int] = []
        watch = Stopwatch()
        for token in model.generate(prompt, temp=0.0):
            watch.first()
            out.append(token)
            if token in stops or len(out) == max_tokens:
                break
        return watch.reply(out)

    return with_lookup if lookup else _plain(llama_cpp, model)


def _plain(api: Any, model: Any) -> Generate:
    """Return a plain loop over the C API.

    The binding's generator would spend a tenth of the time in Python.
    """
    sampler = api.llama_sampler_init_greedy()
    pointer = ctypes.POINTER(api.llama_token)

    def decode(tokens: np.ndarray) -> None:
        batch = api.llama_batch_get_one(tokens.ctypes.data_as(pointer), len(tokens))
        code = api.llama_decode(model.ctx, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        api.llama_memory_clear(api.llama_get_memory(model.ctx), True)
        out: list[int] = []
        watch = Stopwatch()
        tokens = np.array(prompt, np.int32)
        for start in range(0, len(tokens), BATCH):
            decode(tokens[start : start + BATCH])
        tokens = np.zeros(1, np.int32)
        while True:
            token = api.llama_sampler_sample(sampler, model.ctx, -1)
            watch.first()
            out.append(token)
            if token in stops or len(out) == max_tokens:
                return watch.reply(out)
            tokens[0] = token
            decode(tokens)

    return generate


if __name__ == "__main__":
    serve(load, ["llama-cpp-python", "numpy"])
