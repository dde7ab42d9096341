"""Runs ONNX Runtime GenAI on a folder that its model builder made, with plain decoding."""

from __future__ import annotations

import json

from protocol import Generate, Reply, Settings, Stopwatch, serve


def load(settings: Settings) -> Generate:
    import numpy as np
    import onnxruntime_genai as genai

    config = genai.Config(settings["model"])
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {
        "intra_op_num_threads": settings["threads"], "inter_op_num_threads": 1,
    }}}}))  # fmt: skip
    model = genai.Model(config)

    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        params = genai.GeneratorParams(model)
        # Its own stop tokens would end outputs that other engines continue.
        params.set_search_options(
            do_sample=False, max_length=len(prompt) + max_tokens, min_length=0, batch_size=1
        )
        out: list[int] = []
        watch = Stopwatch()
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array(prompt, np.int32))
        while len(out) < max_tokens and not generator.is_done():
            generator.generate_next_token()
            watch.first()
            out.append(int(generator.get_next_tokens()[0]))
            if out[-1] in stops:
                break
        return watch.reply(out)

    return generate


if __name__ == "__main__":
    serve(load, ["onnxruntime-genai", "onnxruntime", "numpy"])
