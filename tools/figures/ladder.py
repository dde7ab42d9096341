"""Measures ladder layers beside sequential ones on two ranks, and how much of the sums they hide.

    python -m tools.figures.ladder [--rounds 40] [--out FILE.json]

Two processes of one thread each divide random models of one shape (arXiv 2501.06589). All forwards
are measured in turns within a round. A time is the tenth percentile of the rounds, because other
programs only add to it. The ranks are neighbours, so a sum is work for the cores and takes no time
on a wire. ``delay`` is how long each sum takes a simulated wire, on which one sum goes at a time
and no core works. ``no sums`` is the same forward without sums. Hidden is the part of what they
cost that a ladder saves: ``(sequential - ladder) / (sequential - no sums)``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh

from paradecode.backends.interface import PAGE
from paradecode.backends.torch.backend import TorchBackend
from paradecode.backends.torch.parallel.model import DividedTransformer
from paradecode.backends.torch.parallel.ranks import Place, join
from paradecode.models.config import uniform
from paradecode.models.tiny import random_weights
from tools.figures.engine import span
from tools.script import Columns, options, save, show, stamped

LAYERS, HIDDEN, INNER = 8, 768, 2048
SHAPE = uniform("random", "llama", 1024, HIDDEN, LAYERS, 12, 6, 64, INNER)
CONTEXT, ROWS, DELAYS = 64, (1, 8), (0.0, 0.5, 1.0, 2.0, 4.0)
"""Tokens in the cache, rows of a forward, and milliseconds."""
COLUMNS: Columns = {
    "rows": "{rows}", "delay, ms": "{delay_ms}", "no sums, ms": "{no_sums_ms:.1f}",
    "sequential, ms": "{sequential_ms:.1f}", "ladder, ms": "{ladder_ms:.1f}",
    "hidden": "{hidden:.2f}", "equal": "{equal}",
}  # fmt: skip


class Travelling(AsyncCollectiveTensor):
    """A sum that is on its way until ``end``; who reads it waits."""

    end = 0.0

    def wait(self) -> Tensor:
        time.sleep(max(0.0, self.end - time.perf_counter()))
        return super().wait()

    def trigger_wait(self) -> Tensor:
        return self.wait()


class Linked(DividedTransformer):
    """A divided model whose sums take a link for a time, one after the other.

    Attributes:
        delay: seconds that each sum takes the link, or None to leave the sums out.
    """

    delay: float | None = 0.0
    _free = 0.0

    def summed(self, share: Tensor, late: bool = False) -> Tensor:
        if self.delay is None:
            return share
        if not self.delay:
            return super().summed(share, late)
        self._free = max(self._free, time.perf_counter()) + self.delay
        whole = Travelling(super().summed(share, late=True).elem)
        whole.end = self._free
        return whole if late else whole.wait()


def opened(residual: str, mesh: DeviceMesh) -> tuple[TorchBackend, Linked]:
    """Return a model whose layers have this residual, and its part on this rank."""
    stack = tuple(replace(layer, ladder=residual == "ladder") for layer in SHAPE.stack)
    config = replace(SHAPE, stack=stack)
    weights = random_weights(config)
    backend = TorchBackend(config, weights, threads=1, mesh=mesh)
    model = Linked(config, weights, torch.float32, torch.device("cpu"), mesh)
    backend.model = model
    backend.reserve(-(-(CONTEXT + max(ROWS)) // PAGE))
    return backend, model


def least(*times: list[float]) -> float:
    return float(np.quantile(np.concatenate(times), 0.1))


def measured(place: Place, rounds: int) -> list[dict[str, Any]]:
    """Return the times by rows and delay, as the first rank sees them; all ranks call this."""
    mesh, _ = join(place)
    random = np.random.default_rng(0)
    ids = random.integers(0, SHAPE.vocab_size, CONTEXT + max(ROWS)).astype(np.int32)
    models = {residual: opened(residual, mesh) for residual in ("sequential", "ladder")}
    for backend, _ in models.values():
        backend.forward([span(ids[:CONTEXT], 0, 1)])
    times: dict[tuple[str, int, float | None], list[float]] = defaultdict(list)
    logits: dict[tuple[str, int, float | None], Any] = {}
    for _ in range(rounds):
        for rows in ROWS:
            asked = [span(ids[CONTEXT : CONTEXT + rows], CONTEXT, rows)]
            for delay in (None, *DELAYS):
                for residual, (backend, model) in models.items():
                    model.delay = delay and delay / 1e3
                    begin, way = time.perf_counter(), (residual, rows, delay)
                    made = backend.forward(asked)[0].logits.values
                    times[way].append(1e3 * (time.perf_counter() - begin))
                    logits[way] = made.copy()
    found = []
    for rows in ROWS:
        bare = least(*(times[residual, rows, None] for residual in models))
        for delay in DELAYS:
            one, other = (least(times[residual, rows, delay]) for residual in models)
            equal = all(
                np.array_equal(logits[residual, rows, delay], logits[residual, rows, 0.0])
                for residual in models
            )
            found.append({
                "rows": rows, "delay_ms": delay, "no_sums_ms": bare, "sequential_ms": one,
                "ladder_ms": other, "hidden": (one - other) / (one - bare), "equal": equal,
            })  # fmt: skip
    return found


def main() -> None:
    given = options(__doc__, rounds=40).parse_args()
    with TemporaryDirectory() as folder:
        first = Place(0, 2, str(Path(folder) / "store"), "cpu", "fp32", 1, 120.0)
        second = replace(first, rank=1)
        other = get_context("spawn").Process(
            target=measured, args=(second, given.rounds), daemon=True
        )
        other.start()
        found = measured(first, given.rounds)
        other.join()
    show(found, COLUMNS, width=100)
    save(stamped(ranks=2, layers=LAYERS, hidden=HIDDEN, inner=INNER, context=CONTEXT,
                 rounds=given.rounds, ways=found), given.out)  # fmt: skip


if __name__ == "__main__":
    main()
