"""Measures an LSTM and an sLSTM of four heads of 256 units in the core, beside PyTorch's loop.

    python -m tools.figures.small_states [--rounds 20] [--out FILE.json]
    python -m tools.figures.small_states FILE.json --into docs/benchmarks.md

FlashRNN (arXiv 2412.07752) keeps the recurrent matrices of a head in the registers of a GPU. Here a
thread takes a head through all rows of a sequence, so that its matrices stay in its cache. A layer
has random weights in float32 and reads 1 to 16 rows that follow one another, as drafts do: PyTorch
multiplies all rows by the input matrix at once, and then steps through them, all heads in one
batched product. Both take turns in one process, with as many threads.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track

from paradecode.backends.interface import Span, StatePages, WindowPages
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Layer
from paradecode.models.small_states import Cells
from paradecode.models.weights import Tensor
from paradecode_lab.measure.tables import Column
from tools.script import Row, err, options, stamped, tabulate

ROWS, HEADS, SIZE, TOKENS = (1, 2, 4, 8, 16), 4, 256, 64
WIDTH = HEADS * SIZE
COLUMNS: tuple[Column[Row], ...] = (
    Column("cell", lambda row: row["cell"]),
    Column("rows", lambda row: str(row["rows"])),
    Column("core ms", lambda row: f"{row['core_ms']:.2f}"),
    Column("over one row", lambda row: f"{row['over_one']:.2f}x"),
    Column("PyTorch ms", lambda row: f"{row['torch_ms']:.2f}"),
    Column("PyTorch over the core", lambda row: f"{row['ratio']:.2f}x"),
    Column("largest difference", lambda row: f"{row['difference']:.0e}"),
)


def looped(
    cell: str, w: dict[str, Any], x: torch.Tensor, states: list[torch.Tensor]
) -> torch.Tensor:
    """Return what the layer adds to rows [K, D], from states [heads, size]."""
    h, c, n, m = states
    entering = F.linear(x, w["cell_in"]).view(len(x), 4, HEADS, SIZE)
    out = []
    for row in entering:
        recurrent = torch.bmm(h[:, None], w["turned"]).view(HEADS, 4, SIZE)
        i, f, z, o = row + recurrent.transpose(0, 1)
        if cell == "lstm":
            c = f.sigmoid() * c + i.sigmoid() * z.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            fall = m + F.logsigmoid(f)
            m = torch.maximum(i, fall)
            keep, add = (fall - m).exp(), (i - m).exp()
            c, n = keep * c + add * z.tanh(), keep * n + add
            h = o.sigmoid() * c / n
        out.append(h.flatten())
    return F.linear(torch.stack(out), w["cell_o"])


def prepared(cell: str) -> tuple[NativeBackend, Callable[[int], Any], Callable[[int], Any]]:
    """Return a layer in the core, and what runs so many rows there and in PyTorch."""
    part = Cells(HEADS, SIZE, cell, "none")
    config = ModelConfig(cell, cell, TOKENS, WIDTH, (Layer((part,)),), 512, tied_head=True)
    random, weights = np.random.default_rng(0), {}
    for name, shape in config.tensors().items():
        values = random.standard_normal(shape, np.float32) / SIZE**0.5
        weights[name] = Tensor(np.ones(shape, np.float32) if name == "norm" else values, shape)
    backend = NativeBackend(config, weights, dtype="f32")
    backend.reserve(3)
    backend.reserve_states(3, 1)
    pages, tokens = np.arange(3, dtype=np.int32), random.integers(0, TOKENS, 16).astype(np.int32)

    def core(rows: int) -> Any:
        every = np.arange(rows, dtype=np.int32)
        states = StatePages(WindowPages(0, pages), 0, -1)
        span = Span(pages=pages, tokens=tokens[:rows], positions=every, slots=every, context=0,
                    logits=every, states=states)  # fmt: skip
        return backend.forward([span])[0].logits

    w = {name.rpartition(".")[2]: torch.from_numpy(weights[name].float32()) for name in weights}
    inner = w["cell_inner"].view(4, HEADS, SIZE, SIZE)
    w["turned"] = inner.permute(1, 3, 0, 2).reshape(HEADS, SIZE, 4 * SIZE).contiguous()
    none = torch.zeros(HEADS, SIZE)
    first = [none, none, none, torch.full_like(none, -1e30)]

    @torch.inference_mode()
    def pytorch(rows: int) -> Any:
        x = w["embed"][torch.from_numpy(tokens[:rows].astype(np.int64))]
        made = x + looped(cell, w, x, first)
        made = made * torch.rsqrt(made.square().mean(1, keepdim=True) + config.norm_eps)
        return F.linear(made, w["embed"])

    return backend, core, pytorch


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each cell and number of rows."""
    ways: list[dict[str, Any]] = []
    runs: dict[tuple[str, int, str], Callable[[], Any]] = {}
    for cell in ("lstm", "slstm"):
        backend, core, pytorch = prepared(cell)
        torch.set_num_threads(backend.threads)
        for rows in ROWS:
            found, wanted = core(rows), pytorch(rows).numpy()
            values = found.gather(np.tile(np.arange(TOKENS), (rows, 1)))
            difference = float(np.abs(values - wanted).max() / np.abs(wanted).max())
            ways.append({"cell": cell, "rows": rows, "difference": difference})
            runs[cell, rows, "core"] = partial(core, rows)
            runs[cell, rows, "torch"] = partial(pytorch, rows)
    times: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for _ in track(range(given.rounds), "rounds", console=err):
        for key, run in runs.items():
            began = time.perf_counter()
            for _ in range(3):
                run()
            times[key].append((time.perf_counter() - began) / 3)
    for way in ways:
        own, other = (times[way["cell"], way["rows"], name] for name in ("core", "torch"))
        one = times[way["cell"], 1, "core"]
        way |= {"core_ms": 1e3 * median(own), "torch_ms": 1e3 * median(other)}
        way["over_one"] = median(a / b for a, b in zip(own, one, strict=True))
        way["ratio"] = median(a / b for a, b in zip(other, own, strict=True))
    return stamped(rounds=given.rounds, threads=backend.threads, ways=ways)


if __name__ == "__main__":
    tabulate(options(__doc__, rounds=20), COLUMNS, measured)
