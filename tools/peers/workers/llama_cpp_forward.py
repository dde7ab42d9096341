"""llama.cpp's cost of a forward: reads {"rows", "context", "sequences"} lines, prints seconds.

``rows`` new tokens of each of ``sequences`` sequences behind ``context`` cached ones, with logits
for all.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp as api
import numpy as np

BATCH = 512


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    api.llama_backend_init()
    parameters = api.llama_model_default_params()
    model = api.llama_model_load_from_file(settings["model"].encode(), parameters)
    options = api.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = settings["slots"], BATCH, BATCH
    options.n_seq_max, options.kv_unified = settings["sequences"], True
    options.n_threads = options.n_threads_batch = settings["threads"]
    context = api.llama_init_from_model(model, options)
    memory = api.llama_get_memory(context)
    batch = api.llama_batch_init(BATCH, 0, 1)

    def decode(entries: list[tuple[int, int]], wanted: bool) -> None:
        """(sequence, position) of each row."""
        batch.n_tokens = len(entries)
        for row, (sequence, position) in enumerate(entries):
            batch.token[row] = 100 + row * 7919 % 40_000
            batch.pos[row], batch.n_seq_id[row] = position, 1
            batch.seq_id[row][0], batch.logits[row] = sequence, wanted
        if api.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    filled: tuple[int, int] | None = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        rows, length, count = asked["rows"], asked["context"], asked["sequences"]
        if filled != (length, count):
            api.llama_memory_clear(memory, True)
            for sequence in range(count):
                for start in range(0, length, BATCH):
                    stop = min(length, start + BATCH)
                    decode([(sequence, at) for at in range(start, stop)], False)
            filled = (length, count)
        entries = [(s, length + row) for s in range(count) for row in range(rows)]
        started = time.perf_counter()
        decode(entries, True)
        # The argmax is part of a greedy step everywhere.
        for row in range(len(entries)):
            logits = ctypes.cast(
                api.llama_get_logits_ith(context, row), ctypes.POINTER(ctypes.c_float * 49152)
            )
            np.frombuffer(logits.contents, np.float32).argmax()
        seconds = time.perf_counter() - started
        for sequence in range(count):
            api.llama_memory_seq_rm(memory, sequence, length, -1)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
