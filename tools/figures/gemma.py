"""What a canvas of DiffusionGemma costs on this machine, in the shape of the published 26B-A4B.

    python -m tools.figures.gemma [--layers 30] [--text 512] [--rounds 3] [--out FILE.json]

The weights are random: layers share the numbers they are packed from, so no file of 52 GB is
needed, but each has its own packed copy, as with a real file. A canvas of 256 tokens is refined
behind ``--text`` tokens: first without a guess, then with one that is sure (a token has nearly all
of the probability) and one that is flat (all tokens are read, which is the most that it can
cost). `sampler` is what the sampler computes between two forwards: the guess at another
temperature, its best tokens and its entropies. Medians of the rounds, with the share of each part.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rich.progress import Progress

from paradecode.backends.interface import PAGE, Span
from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.core.decoder import Denoise
from paradecode.models.diffusion.diffusion_gemma import diffusion_gemma
from paradecode.models.metadata import Metadata
from paradecode.models.weights import Kind, Tensor
from paradecode.serve.worker.memory import resident
from tools.script import Columns, err, options, save, show, stamped

TEXT = {
    "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112, "num_attention_heads": 16,
    "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
    "global_head_dim": 512, "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8,
    "sliding_window": 1024,
}  # fmt: skip
CANVAS = 256
COLUMNS: Columns = {
    "what": "{what}", "rows": "{rows}", "seconds": "{seconds:.2f}",
    "parts": lambda row: ", ".join(f"{k} {v:.0%}" for k, v in row["parts"].items()),
}  # fmt: skip


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """bfloat16 matrices, those of one shape all the same, and vectors of ones."""
    random, known = np.random.default_rng(0), dict[tuple[int, ...], Any]()
    for shape in {shape for shape in shapes.values() if len(shape) == 2}:
        rows, columns = shape
        few = random.standard_normal((min(rows, 512), columns), np.float32)
        bits = (few / columns**0.5).view(np.uint32) >> 16
        known[shape] = np.resize(bits.astype(np.uint16), shape)
    made: dict[str, Tensor] = {}
    for name, wanted in shapes.items():
        if len(wanted) == 2:
            made[name] = Tensor(known[wanted], wanted, Kind.BF16)
        else:
            made[name] = Tensor(np.ones(wanted, np.float32), wanted, Kind.F32)
    return made


def span(start: int, count: int, denoise: Denoise | None, vocabulary: int) -> Span:
    at = np.arange(start, start + count, dtype=np.int32)
    canvas = denoise is not None
    return Span(
        pages=np.arange(-(-(start + count) // PAGE), dtype=np.int32),
        tokens=(at * 7919 % vocabulary).astype(np.int32), positions=at, context=start,
        slots=np.full(count, -1, np.int32) if canvas else at, denoise=denoise,
        logits=np.arange(count if canvas else 0, dtype=np.int32),
        mask=np.ones((count, count), bool) if canvas else None,
    )  # fmt: skip


def timed(backend: NativeBackend, rounds: int, run: Callable[[], Any]) -> dict[str, Any]:
    """Median seconds, and the parts of forwards that take 2 % and more."""
    seconds = []
    backend.profile(True)
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    parts = backend.profile(False)
    total = sum(parts.values()) or 1.0
    large = {name: part / total for name, part in parts.items() if part >= 0.02 * total}
    return {"seconds": statistics.median(seconds), "parts": large}


def main() -> None:
    given = options(__doc__, layers=30, text=512, rounds=3).parse_args()
    values = {**TEXT, "num_hidden_layers": given.layers}
    config = diffusion_gemma(Metadata({"text_config": values, "canvas_length": CANVAS}), "26B-A4B")
    weights = random_tensors(config.tensors())
    started = time.perf_counter()
    with Progress(console=err) as progress:
        task = progress.add_task("packing", total=1.0)
        backend = NativeBackend(
            config, weights, dtype="q4",
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    packed = time.perf_counter() - started
    backend.reserve(-(-(given.text + CANVAS) // PAGE))
    random, size = np.random.default_rng(1), (CANVAS, config.vocab_size)
    flat = random.standard_normal(size, np.float32)
    sure = flat.copy()
    sure[np.arange(CANVAS), random.integers(0, config.vocab_size, CANVAS)] = 25.0
    guesses = {"canvas": None, "canvas, sure guess": sure, "canvas, flat guess": flat}
    rows = []

    def book(what: str, count: int, run: Callable[[], Any]) -> None:
        rows.append({"what": what, "rows": count, **timed(backend, given.rounds, run)})

    book("text", given.text, lambda: backend.forward([span(0, given.text, None, size[1])]))
    for what, raw in guesses.items():
        guess = None if raw is None else NativeLogits.from_array(raw)
        canvas = span(given.text, CANVAS, Denoise(guess), size[1])
        book(what, CANVAS, partial(backend.forward, [canvas]))
    logits = backend.forward([span(given.text, CANVAS, Denoise(), size[1])])[0].logits

    def sampled() -> None:
        heated = logits.tempered(0.6)
        heated.argmax()
        heated.entropy()

    book("sampler", CANVAS, sampled)
    show(rows, COLUMNS)
    facts = {"layers": given.layers, "dtype": "q4", "parameters": sum(
        int(np.prod(shape)) for shape in config.tensors().values())}  # fmt: skip
    print(f"packed in {packed:.0f} s, {resident() / 2**30:.1f} GiB resident")
    save(stamped(**facts, packing=packed, resident=resident(), rows=rows), given.out)


if __name__ == "__main__":
    main()
