"""Runs llama.cpp's server in this process through xllamacpp, plain or with n-gram speculation."""

from __future__ import annotations

import json
import time

from protocol import Generate, Reply, Settings, serve, system


def load(settings: Settings) -> Generate:
    import xllamacpp as x

    params = x.CommonParams()
    params.model.path = settings["model"]
    params.n_ctx = settings["context"]
    params.n_parallel = 1
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_prompt = False
    params.cache_ram_mib = 0
    if settings.get("speculation"):
        kind = "COMMON_SPECULATIVE_TYPE_" + settings["speculation"].upper().replace("-", "_")
        params.speculative.types = [getattr(x.common_speculative_type, kind)]
    for name, value in settings.get("ngram", {}).items():
        setattr(getattr(params.speculative, settings["speculation"].replace("-", "_")), name, value)
    server = x.Server(params)
    system["info"] = x.get_system_info()

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        start = time.perf_counter()
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0.0,
                "cache_prompt": False,
                "verbose": True,
                "return_tokens": True,
                "ignore_eos": not stops,
            }
        )
        wall = time.perf_counter() - start
        if "__verbose" not in answer:
            raise RuntimeError(json.dumps(answer)[:300])
        detail = answer["__verbose"]
        decode = detail["timings"]["predicted_ms"] / 1000
        stopped = detail["stop_type"] == "eos"
        return Reply(detail["tokens"], max(wall - decode, 0.0), decode, 1, stopped)

    return generate


if __name__ == "__main__":
    serve(load, ["xllamacpp"])
