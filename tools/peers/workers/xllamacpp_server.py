"""Runs llama.cpp's HTTP server through xllamacpp, for machines without a ``llama-server``.

    python xllamacpp_server.py MODEL PORT THREADS SLOTS CONTEXT [DRAFT]

It runs until it is killed. ``CONTEXT`` is the context length of one slot, in tokens. ``DRAFT`` is a
draft model, or ``ngram``: four tokens that stood there before propose what followed them.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp as x


def main(model: str, port: int, threads: int, slots: int, context: int, draft: str) -> None:
    params = x.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.cont_batching = True
    kinds, speculative = x.common_speculative_type, params.speculative
    if draft == "ngram":
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n = 4
        speculative.ngram_simple.size_m = 8
    elif draft:
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path = draft
    server = x.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]), draft=sys.argv[6] if len(sys.argv) > 6 else "")
