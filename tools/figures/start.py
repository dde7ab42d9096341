"""Measures how long a fresh process takes to load a model, to answer, and to read first prompts.

    python -m tools.figures.start [MODEL ...] [--layers 32] [--rounds 3] [--out FILE.json]

Each round starts a new process for each model. If a model's file is missing, it is written: random
weights in the formats of Q4_K_M, with the shapes of Llama 2 7B (4.1 GB with 32 layers). The peak
memory includes the pages of the file that were read.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Kind
from rich.progress import track

from tools.peers.formats import finish
from tools.peers.process import status_bytes
from tools.script import Columns, err, options, said_by, save, show, stamped

WIDTH, INNER, HEADS, VOCABULARY = 4096, 11008, 32, 32000
PROMPT, PROMPTS = 480, ("first_prompt", "second_prompt", "third_prompt")
SCALES = {Kind.Q4_K: {0: 2**-14, 1: 2**-11}, Kind.Q6_K: {-1: 2**-17}}
"""Values of a block's half-precision scales and minima, by their index in the block."""
COLUMNS: Columns = {
    "model": "{model}", "loaded, s": "{load_seconds:.2f}",
    "answered, s": "{first_answer_seconds:.2f}",
    "peak of loading, MB": lambda row: f"{row['peak_bytes'] / 1e6:.0f}",
    "resident after 2 tokens, MB": lambda row: f"{row['resident_bytes'] / 1e6:.0f}",
    "first prompt, tokens/s": "{first_prompt:.0f}", "second": "{second_prompt:.0f}",
    "third": "{third_prompt:.0f}",
}  # fmt: skip


def write_model(path: Path, layers: int) -> None:
    """Write a model of random blocks.

    All are Q4_K, except Q6_K for the head, and for `v` and `down` of every second layer.
    """
    random = np.random.default_rng(0)
    pools = {}
    for kind in (Kind.Q4_K, Kind.Q6_K):
        block, size = GGML_QUANT_SIZES[kind]
        pool = random.integers(0, 256, (VOCABULARY * WIDTH // block, size), np.uint8)
        for half, value in SCALES[kind].items():  # The scales are small, so that sums stay finite.
            pool.view(np.float16)[:, half] = value
        pools[kind] = pool
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(
        ["t", *(str(i) for i in range(9)), *(f"t{i}" for i in range(VOCABULARY - 10))]
    )
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(VOCABULARY - 1)

    def matrix(name: str, rows: int, columns: int, kind: Kind = Kind.Q4_K) -> None:
        block, size = GGML_QUANT_SIZES[kind]
        values = pools[kind][: rows * columns // block].reshape(rows, columns // block * size)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)

    norm = np.ones(WIDTH, np.float32)
    matrix("token_embd", VOCABULARY, WIDTH)
    matrix("output", VOCABULARY, WIDTH, Kind.Q6_K)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(layers):
        wide = Kind.Q4_K if layer % 2 else Kind.Q6_K
        prefix = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_output"):
            matrix(prefix + name, WIDTH, WIDTH)
        matrix(prefix + "attn_v", WIDTH, WIDTH, wide)
        for name in ("ffn_gate", "ffn_up"):
            matrix(prefix + name, INNER, WIDTH)
        matrix(prefix + "ffn_down", WIDTH, INNER, wide)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{prefix}{name}.weight", norm)
    finish(writer)


def load(path: str) -> None:
    """Use the model once in this process, and print the figures as JSON."""
    from paradecode import LLM

    own = os.getpid()
    before = status_bytes(own, "VmHWM")  # Not the parent's, as that of getrusage is.
    begun = time.perf_counter()
    llm = LLM(path or None)
    loaded = time.perf_counter()
    peak = status_bytes(own, "VmHWM")
    llm.complete("Say hello.", max_tokens=2)
    answered, resident = time.perf_counter(), status_bytes(own, "VmRSS")
    figures: dict[str, float] = {
        "load_seconds": loaded - begun, "first_answer_seconds": answered - begun,
        "peak_bytes": peak - before, "resident_bytes": resident,
    }  # fmt: skip
    # Each prompt has tokens of its own, so that no prefix is found in the cache.
    for seed, name in enumerate(PROMPTS):
        ids = np.random.default_rng(seed).integers(256, llm.config.vocab_size - 256, PROMPT)
        stats = llm.complete([ids.tolist()], max_tokens=1, decoder="greedy")[0].stats
        figures[name] = PROMPT / stats.prefill_seconds
    print(json.dumps(figures))


def measure(path: str) -> dict[str, float]:
    """Return the figures of a process that loads the file and nothing else."""
    return dict(said_by(f"from tools.figures.start import load; load({path!r})"))


def main() -> None:
    parser = options(__doc__, layers=32, rounds=3)
    parser.add_argument("models", nargs="*", default=[""], help="files; none: the default model")
    given = parser.parse_args()
    for name in given.models:
        if name and not Path(name).exists():
            write_model(Path(name), given.layers)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.models}
    for _ in track(range(given.rounds), description="rounds", console=err):
        for name in given.models:
            found[name].append(measure(name))
    rows: list[dict[str, Any]] = [
        {
            "model": Path(name).name or "default",
            "file_bytes": Path(name).stat().st_size if name else None,
            **{field: median(each[field] for each in rounds) for field in rounds[0]},
        }
        for name, rounds in found.items()
    ]
    show(rows, COLUMNS)
    save(stamped(rounds=given.rounds, models=rows), given.out)


if __name__ == "__main__":
    main()
