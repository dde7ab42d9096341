"""Measures what one forward of the native backend costs, and the least that this machine allows.

    python -m tools.figures.forward [MODEL ...] [--rounds 12] [--out FILE.json]

Row counts, contexts and the memory's read bandwidth are measured in turns within a round, so that a
passing disturbance affects all of them; figures are medians. The least time of one row is the time
to read the weights, the keys and the values. Each further row adds the time of its products at the
processor's peak.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.backends.interface import PAGE
from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend, NativeLogits
from paradecode.cli.phases import measure_phases
from paradecode.core.logits import Warp
from paradecode.core.noise import key
from paradecode.llm import LLM
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from tools.figures.engine import span
from tools.script import err, options, save, show, stamped

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (300, 1500)
PROMPT = 512
CALLS = 4
FORWARDS = {
    "model": "{model}", "context": "{context}", "rows": "{rows}", "ms": "{ms:.2f}",
    "least ms": "{least_ms:.2f}", "times one row": "{ratio:.2f}",
}  # fmt: skip
FLOORS = {
    "model": "{model}", "MB a forward": "{megabytes:.0f}", "GB/s": "{bandwidth:.1f}",
    "floor of one row, ms": "{floor_ms:.2f}", "share of the bandwidth": "{share:.2f}",
    "a further row at least, ms": "{row_ms:.2f}", "tokens/s of a prompt": "{prompt:.0f}",
}  # fmt: skip
SAMPLING = {"over the vocabulary of the first model": "{call}", "us a row": "{us:.1f}"}


def products(config: ModelConfig) -> int:
    """Return the number of multiplications with weights for one row, including its logits."""
    matrices = [s for name, s in config.tensors().items() if len(s) == 2 and name != "embed"]
    tied = config.vocab_size * config.hidden_size if config.tied_head else 0
    return sum(int(np.prod(shape)) for shape in matrices) + tied


def seconds_of(call: Callable[..., object], *args: object) -> float:
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin


def measure(name: str, rounds: int) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Measure a model's least times, and its forwards by context and number of rows."""
    checkpoint = open_model(name or None)
    config = checkpoint.config
    backend = NativeBackend(config, checkpoint.weights)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, 4096).astype(np.int32)
    backend.reserve(-(-(max(CONTEXTS) + PROMPT) // PAGE))
    prompt = [span(ids[:PROMPT], 0, 1)]
    backend.forward([span(ids[: max(CONTEXTS)], 0, 1)])
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    bandwidth, shares, prompts = [], [], []
    for _ in track(range(rounds), description=config.name, console=err):
        read = _core.read_bandwidth(backend.weight_bytes, backend.threads)
        prompts.append(seconds_of(backend.forward, prompt))
        for context in CONTEXTS:
            for rows in ROWS:
                one = [span(ids[:rows], context, rows)]
                times[context, rows] += [seconds_of(backend.forward, one) for _ in range(CALLS)]
        bandwidth.append(read)
        first = median(times[CONTEXTS[0], 1][-CALLS:])
        shares.append(backend.weight_bytes / first / read)
    floor = {
        "model": config.name, "instruction_set": backend.instruction_set[0],
        "threads": backend.threads, "megabytes": backend.weight_bytes / 1e6,
        "bandwidth": median(bandwidth) / 1e9, "share": median(shares),
        "floor_ms": 1e3 * backend.weight_bytes / median(bandwidth),
        "row_ms": 1e3 * products(config) / _core.dot_peak(backend.threads),
        "prompt": PROMPT / median(prompts),
    }  # fmt: skip
    backend.close()
    forwards = (
        {
            "model": config.name, "context": context, "rows": rows, "ms": 1e3 * median(each),
            "least_ms": 1e3 * min(each), "ratio": median(each) / median(times[context, 1]),
        }
        for (context, rows), each in times.items()
    )  # fmt: skip
    return floor, forwards


def sampling(vocabulary: int, rounds: int) -> list[dict[str, Any]]:
    """Measure operations on logits, eight rows at a time, in microseconds per row."""
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
    return [
        {"call": name, "us": 1e6 / 8 * median(seconds_of(call) for _ in range(rounds * CALLS))}
        for name, call in calls.items()
    ]


def main() -> None:
    parser = options(__doc__, rounds=12)
    parser.add_argument("models", nargs="*", default=[""], help="files; none: the default model")
    given = parser.parse_args()
    floors: list[dict[str, Any]] = []
    forwards: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    for name in given.models:
        floor, times = measure(name, given.rounds)
        floors.append(floor)
        forwards += times
        with LLM(name or None, backend="native") as llm:
            phases.append({"model": llm.model} | asdict(measure_phases(llm, CONTEXTS[0])))
    logits = sampling(open_model(given.models[0] or None).config.vocab_size, given.rounds)
    show(floors, FLOORS)
    show(forwards, FORWARDS)
    show(logits, SAMPLING)
    result = stamped(
        rounds=given.rounds, floors=floors, phases=phases, forwards=forwards, sampling=logits
    )
    save(result, given.out)


if __name__ == "__main__":
    main()
