"""What one forward of the native backend costs, next to what this machine could do at best.

    python -m tools.figures.forward [--model FILE.gguf] [--threads N ...] [--rounds 12]

Row counts take turns within a round, so that a passing disturbance touches all of them. Medians are
printed with the smallest time behind them. The floor of one row is the time to read the weights;
the floor of many rows is that or the arithmetic, whichever is longer.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable

import numpy as np

from paradecode.backends.interface import PAGE, Span
from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.core.logits import Warp
from paradecode.core.noise import key
from paradecode.models.catalogue import open_model
from tools.figures.engine import span

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (300, 1500)
PREFILL = 512


def milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def forward_time(backend: NativeBackend, one: Span) -> float:
    return milliseconds(lambda: backend.forward([one]))


def measure(backend: NativeBackend, rounds: int) -> None:
    config = backend.config
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 4096).astype(np.int32)
    backend.reserve(max(CONTEXTS) // PAGE + 64)
    speed = []
    for first in range(0, max(CONTEXTS) - PREFILL + 1, PREFILL):
        one = span(ids[first : first + PREFILL], first, 1)
        speed.append(min(forward_time(backend, one) for _ in range(3)))
    backend.forward([span(ids[: max(CONTEXTS)], 0, 1)])
    print(f"prefill of {PREFILL}: {PREFILL / speed[0] * 1e3:.0f} tokens/s at context 0, "
          f"{PREFILL / speed[-1] * 1e3:.0f} at {PREFILL * (len(speed) - 1)}")  # fmt: skip
    print("context  " + "  ".join(f"{f'K={rows}':>13}" for rows in ROWS) + "   t(4)/t(1) t(8)/t(1)")
    for context in CONTEXTS:
        times: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for _ in range(rounds):
            for rows in ROWS:
                one = span(ids[:rows], context, rows)
                times[rows] += [forward_time(backend, one) for _ in range(4)]
        middle = {rows: float(np.median(times[rows])) for rows in ROWS}
        cells = "  ".join(f"{middle[rows]:5.2f} (>={min(times[rows]):5.2f})" for rows in ROWS)
        print(f"{context:7}  {cells}   {middle[4] / middle[1]:.2f}  {middle[8] / middle[1]:.2f}")


def measure_logits(vocabulary: int, rounds: int) -> None:
    values = np.random.default_rng(0).normal(0, 4, (8, vocabulary)).astype(np.float32)
    logits = NativeLogits.from_array(values)
    keys = [key(1, position) for position in range(8)]
    calls: dict[str, Callable[[], object]] = {
        "argmax": logits.argmax,
        "sample, temperature 0.8": lambda: logits.sample(Warp(0.8), keys),
        "sample, top_k 50": lambda: logits.sample(Warp(0.8, top_k=50), keys),
        "sample, top_p 0.9": lambda: logits.sample(Warp(0.8, top_p=0.9), keys),
        "top_k(8)": lambda: logits.top_k(8),
        "log_normalizer": logits.log_normalizer,
        "entropy": logits.entropy,
    }
    for name, call in calls.items():
        times = [milliseconds(call) * 1e3 / 8 for _ in range(rounds * 4)]
        print(f"{name:24} {np.median(times):6.1f} us a row")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, nargs="*", default=[None])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    checkpoint = open_model(options.model)
    for threads in options.threads:
        backend = NativeBackend(checkpoint.config, checkpoint.weights, threads=threads)
        name, reason = backend.instruction_set
        print(f"\n{checkpoint.config.name}: {name} ({reason}), {backend.threads} thread(s)")
        read = _core.read_bandwidth(backend.weight_bytes, backend.threads)
        peak = _core.dot_peak(backend.threads)
        weights = sum(
            int(np.prod(shape)) for name, shape in checkpoint.config.tensors().items()
            if len(shape) == 2 and name != "embed"
        ) + (checkpoint.config.tied_head * checkpoint.config.vocab_size
             * checkpoint.config.hidden_size)  # fmt: skip
        megabytes = backend.weight_bytes / 1e6
        print(
            f"floor: {megabytes:.0f} MB of weights at {read / 1e9:.0f} GB/s = "
            f"{backend.weight_bytes / read * 1e3:.2f} ms a forward; "
            f"{weights / 1e6:.0f} M products at {peak / 1e9:.0f} G/s = "
            f"{weights / peak * 1e3:.2f} ms a row"
        )
        measure(backend, options.rounds)
        backend.close()
    measure_logits(checkpoint.config.vocab_size, options.rounds)


if __name__ == "__main__":
    main()
