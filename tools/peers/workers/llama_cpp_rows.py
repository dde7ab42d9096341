"""Times llama.cpp's forwards row by row. Requests are JSON lines on stdin and stdout.

{"load": {"model", "slots", "sequences", "threads"}} comes first (see ``protocol``)
{"rows", "context", "sequences"} -> {"seconds"} of a forward: ``rows`` new tokens for each of
    ``sequences`` sequences after ``context`` cached tokens, with logits for all rows.
{"tokens": [id, ...]}            -> {"nll": [...]}, in nats, of every token but the first.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp as api
import numpy as np
from protocol import Settings, answer_requests

BATCH = 512
Entry = tuple[int, int, int]
"""Token id, sequence and position of a row."""


class Rows:
    """A loaded model, which answers the requests that the module's docstring lists."""

    def __init__(self, settings: Settings) -> None:
        api.llama_backend_init()
        model = api.llama_model_load_from_file(
            settings["model"].encode(), api.llama_model_default_params()
        )
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = settings["slots"], BATCH, BATCH
        options.n_seq_max, options.kv_unified = settings["sequences"], True
        options.n_threads = options.n_threads_batch = settings["threads"]
        self.context = api.llama_init_from_model(model, options)
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self.row_type = ctypes.POINTER(ctypes.c_float * vocabulary)
        self.filled: tuple[int, int] | None = None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "tokens" in asked:
            return {"nll": self.nll(asked["tokens"])}
        return {"seconds": self.seconds(asked["rows"], asked["context"], asked["sequences"])}

    def decode(self, entries: list[Entry], wanted: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(entries)
        for row, (token, sequence, position) in enumerate(entries):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position, 1
            batch.seq_id[row][0], batch.logits[row] = sequence, wanted
        if api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def logits(self, row: int) -> np.ndarray:
        pointer = api.llama_get_logits_ith(self.context, row)
        return np.frombuffer(ctypes.cast(pointer, self.row_type).contents, np.float32)

    def seconds(self, rows: int, length: int, sequences: int) -> float:
        if self.filled != (length, sequences):
            api.llama_memory_clear(self.memory, True)
            for sequence in range(sequences):
                for start in range(0, length, BATCH):
                    stop = min(length, start + BATCH)
                    self.decode(some_tokens(sequence, start, stop - start), False)
            self.filled = (length, sequences)
        entries = [e for sequence in range(sequences) for e in some_tokens(sequence, length, rows)]
        started = time.perf_counter()
        self.decode(entries, True)
        for row in range(len(entries)):  # The argmax belongs to a greedy step in every engine.
            self.logits(row).argmax()
        seconds = time.perf_counter() - started
        for sequence in range(sequences):
            api.llama_memory_seq_rm(self.memory, sequence, length, -1)
        return seconds

    def nll(self, tokens: list[int]) -> list[float]:
        api.llama_memory_clear(self.memory, True)
        self.filled = None
        losses = []
        for start in range(0, len(tokens) - 1, BATCH):
            part = tokens[start : start + BATCH]
            self.decode([(token, 0, start + row) for row, token in enumerate(part)], True)
            for row, token in enumerate(tokens[start + 1 : start + 1 + BATCH]):
                logits = self.logits(row).astype(float)
                top = logits.max()
                losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[token]))
        return losses


def some_tokens(sequence: int, start: int, count: int) -> list[Entry]:
    return [(100 + row * 7919 % 40_000, sequence, start + row) for row in range(count)]


if __name__ == "__main__":
    answer_requests(lambda settings: Rows(settings).answer, ["llama-cpp-python", "numpy"])
