"""llama.cpp's negative log-likelihoods: {"model", "threads", "windows": [[id, ...], ...]} on stdin.

Prints one list of nats for each window, one for every token but the first.
"""

from __future__ import annotations

import ctypes
import json
import sys

import llama_cpp as api
import numpy as np


def main() -> None:
    asked = json.load(sys.stdin)
    size = len(asked["windows"][0])
    api.llama_backend_init()
    model = api.llama_model_load_from_file(
        asked["model"].encode(), api.llama_model_default_params()
    )
    options = api.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = size
    options.n_threads = options.n_threads_batch = asked["threads"]
    context = api.llama_init_from_model(model, options)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(size, 0, 1)
    for window in asked["windows"]:
        api.llama_memory_clear(api.llama_get_memory(context), True)
        batch.n_tokens = size
        for row, token in enumerate(window):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, row, 1
            batch.seq_id[row][0], batch.logits[row] = 0, True
        if api.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        losses = []
        for row, token in enumerate(window[1:]):
            pointer = api.llama_get_logits_ith(context, row)
            kind = ctypes.POINTER(ctypes.c_float * vocabulary)
            logits = np.frombuffer(ctypes.cast(pointer, kind).contents, np.float32).astype(float)
            top = logits.max()
            losses.append(top + np.log(np.exp(logits - top).sum()) - logits[token])
        print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
