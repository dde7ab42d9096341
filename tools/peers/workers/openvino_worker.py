"""Runs OpenVINO GenAI, plain or with its prompt lookup, on a GGUF file or an exported folder."""

from __future__ import annotations

from protocol import Generate, Reply, Settings, serve


def load(settings: Settings) -> Generate:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # Every round has the same prompts.
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = settings["context"]
    options = {"scheduler_config": scheduler, "INFERENCE_NUM_THREADS": settings["threads"]}
    if settings.get("precision"):
        options["INFERENCE_PRECISION_HINT"] = settings["precision"]
    lookup = settings.get("lookup")
    if lookup:
        options["prompt_lookup"] = True
    if settings.get("tokenizer"):
        tokenizer = genai.Tokenizer(settings["tokenizer"])
        pipeline = genai.LLMPipeline(settings["model"], tokenizer, "CPU", **options)
    else:
        pipeline = genai.LLMPipeline(settings["model"], "CPU", **options)

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        config = genai.GenerationConfig()
        config.do_sample = False
        config.max_new_tokens = max_tokens
        config.apply_chat_template = False
        config.ignore_eos = not stops
        if stops:
            config.eos_token_id = max(stops)
            config.stop_token_ids = set(stops)
        if lookup:
            config.num_assistant_tokens = lookup
            config.max_ngram_size = 3
        ids = np.array([prompt], np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        result = pipeline.generate(inputs, config)
        tokens = [int(token) for token in result.tokens[0]]
        metrics = result.perf_metrics
        first = metrics.get_ttft().mean / 1000
        total = metrics.get_generate_duration().mean / 1000
        return Reply(tokens, first, total - first, 1, len(tokens) < max_tokens)

    return generate


if __name__ == "__main__":
    serve(load, ["openvino", "openvino-genai", "openvino-tokenizers"])
