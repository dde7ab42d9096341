"""How fast a large model loads, and how much memory it takes meanwhile.

    python -m tools.figures.packing FILE.gguf [--layers 32]

Writes a file of random weights as Q4_K_M has them, shaped as Llama 2 7B (4.1 GB with 32 layers), if
there is none, and loads it into the native core. Memory is the process's largest, pages of the file
included, less what it held before.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Kind

WIDTH, INNER, HEADS, VOCABULARY = 4096, 11008, 32, 32000


def write_model(path: Path, layers: int) -> None:
    """Random blocks: Q4_K, and Q6_K for the head and for `v` and `down` of every second layer."""
    random = np.random.default_rng(0)
    pools = {}
    for kind in (Kind.Q4_K, Kind.Q6_K):
        block, size = GGML_QUANT_SIZES[kind]
        pool = random.integers(0, 256, (VOCABULARY * WIDTH // block, size), np.uint8)
        pool[:, [1, 3, -1]] &= 0xBF  # Half-precision scales must be finite.
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: str) -> None:
    """Load in this process and print the figures as JSON."""
    from paradecode.backends import open_backend
    from paradecode.models.gguf_file import read_gguf

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    checkpoint = read_gguf(path)
    read = time.perf_counter()
    backend = open_backend("native", checkpoint.config, checkpoint.weights)
    packed = time.perf_counter()
    backend.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        json.dumps(
            {
                "file_bytes": Path(path).stat().st_size,
                "read_seconds": read - begun,
                "pack_seconds": packed - read,
                "peak_bytes": peak * 1024,
            }
        )
    )


def measure(path: Path) -> dict[str, float]:
    """The figures of a process that loads the file and nothing else."""
    code = f"from tools.figures.packing import load; load({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    options = parser.parse_args()
    if not options.file.exists():
        write_model(options.file, options.layers)
    found = measure(options.file)
    print(
        f"{found['file_bytes'] / 1e9:.2f} GB: opened in {found['read_seconds']:.2f} s, packed in "
        f"{found['pack_seconds']:.2f} s; at most {found['peak_bytes'] / found['file_bytes']:.2f} "
        "times the file in memory"
    )


if __name__ == "__main__":
    main()
