"""What a draft by a head costs beside a forward of the target: each kind, with random weights.

    python -m tools.figures.head_cost [--model FILE.gguf] [--rounds 40] [--out FILE.json]

Heads have the target's own sizes; EAGLE-1, MTP and Medusa guess among all tokens, the others among
8,192. A draft takes in three rows behind 300 committed ones, and guesses at most 8 nodes in 4
levels.
Before each a forward of one row pushes the head's weights out of the caches, as in decoding. The
floor is the time to read the matrices of the levels that were run. `networks` is the same head run
network by network; the last kinds have no other way, and their MB count a byte a number.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import PAGE
from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.native.heads import NativeHeads
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.tree import TokenTree
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import Sizes, random_head
from tools.figures.engine import span
from tools.script import Columns, err, options, save, show, stamped

KINDS = ("eagle", "eagle3", "mtp", "p-eagle", "medusa", "dovetail")
APART = ("clover", "clover-2", "falcon", "chimera", "longspec")
"""Kinds that the core runs network by network."""
COMMITTED, ROWS, NODES, WIDTH, DEPTH = 300, 3, 8, 4, 4
COLUMNS: Columns = {
    "head": "{head}", "MB": "{megabytes:.1f}", "levels": "{levels}",
    "draft, ms": "{draft:.2f}", "level, ms": "{level:.2f}",
    "floor, ms": lambda row: f"{row['floor']:.2f}" if row["floor"] else "",
    "networks, ms": "{networks:.2f}", "forward, ms": "{forward:.2f}",
}  # fmt: skip


def head_of(kind: str, config: ModelConfig) -> Head:
    taps = (1, config.layers // 2 - 1, config.layers - 4)
    sizes = Sizes(config.heads, config.kv_heads, config.head_dim, config.intermediate_size, taps,
                  min(8192, config.vocab_size))  # fmt: skip

    def nothing(name: str) -> Any:
        raise AssertionError(name)

    with tempfile.TemporaryDirectory() as folder:
        stored = read_head(random_head(kind, config, Path(folder), sizes=sizes))
    return build_head(stored, config, nothing, 8192 if kind in APART else 0)


def matrix_numbers(head: Head) -> int:
    """Numbers of all matrices."""
    networks = [head.enter, *head.outs]
    for block in head.blocks:
        networks += [each for each in (block.before, block.after, block.text) if each is not None]
    for layer in head.lstm:
        networks += [layer.before, layer.step]
    networks += head.cell.steps if head.cell else ()
    return sum(network.tensors[step.tensors[0]].size for network in networks
               for step in network.steps if step.kind == "linear")  # fmt: skip


class Drafting:
    """A request whose rows a head takes in, three at a time."""

    def __init__(
        self, head: Head, config: ModelConfig, run: Callable[..., list[TokenTree]]
    ) -> None:
        random = np.random.default_rng(0)
        self.head, self.run = head, run
        width = head.enter.inputs["features"]
        self.features = random.standard_normal((COMMITTED, width)).astype(np.float32)
        self.tokens = random.integers(0, config.vocab_size, COMMITTED)
        self.memory = Memory()
        self.draft(COMMITTED)

    def draft(self, rows: int = ROWS) -> None:
        """One draft, which leaves nothing behind."""
        known = self.memory.length
        asked = HeadDraft(self.memory, self.features[:rows], self.tokens[:rows], known, NODES,
                          WIDTH, DEPTH)  # fmt: skip
        self.run(self.head, [asked])
        if rows == ROWS:
            self.memory.length = known


def milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def main() -> None:
    parser = options(__doc__, rounds=40)
    parser.add_argument("--model")
    given = parser.parse_args()
    checkpoint = open_model(given.model)
    config = checkpoint.config
    backend = NativeBackend(config, checkpoint.weights)
    backend.reserve(COMMITTED // PAGE + 4)
    heads = NativeHeads(backend.threads)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, COMMITTED + 1).astype(np.int32)
    backend.forward([span(ids[:COMMITTED], 0, 1)])
    one = span(ids[COMMITTED:], COMMITTED, 1)
    rows = []
    for kind in track((*KINDS, *APART), description="heads", console=err):
        head = head_of(kind, config)
        ways = {
            "draft": Drafting(head, config, heads.run_head),
            "networks": Drafting(
                head, config, lambda head, asked: run_head(head, asked, backend.apply)
            ),
        }
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(given.rounds):
            for way, drafting in ways.items():
                times["forward"].append(milliseconds(lambda: backend.forward([one])))
                times[way].append(milliseconds(drafting.draft))
        middle = {way: float(np.median(taken)) for way, taken in times.items()}
        levels = round(head.pace.draft / head.pace.level)
        level_bytes, enter_bytes = matrix_numbers(head), 0
        bandwidth = floor = None
        if kind in KINDS:
            level_bytes, enter_bytes = heads.native(head).bytes
            bandwidth = _core.read_bandwidth(level_bytes, backend.threads)
            floor = 1e3 * (levels * level_bytes + enter_bytes) / bandwidth
        rows.append(
            {
                "head": kind, "levels": levels,
                "megabytes": (level_bytes + enter_bytes) / 1e6, **middle,
                "level": middle["draft"] / levels, "floor": floor,
                "bandwidth": bandwidth and bandwidth / 1e9,
            }
        )  # fmt: skip
    backend.close()
    show(rows, COLUMNS)
    save(stamped(model=config.name, rounds=given.rounds, threads=heads.threads, heads=rows),
         given.out)  # fmt: skip


if __name__ == "__main__":
    main()
