"""What a greedy row could leave unread of the head, and what that would save.

    python -m tools.figures.exact_head [MODEL.gguf ...] [--rounds 16] [--out FILE.json]

The head in fewer bits gives each logit up to an error that is at most, by Cauchy and Schwarz in
each group of 32 inputs, the norm of the inputs times the norm of what the lower bits hold. Tokens
whose logit could be the largest survive; only their panels of 16 outputs are read in full. Counted
for the model's own hidden states and numbers of upper bits, with the norm of each group; and timed
in the core as it is (`csrc/screen.hpp`), which has one norm a token: forwards whose logits are all
made, in turns with forwards that are asked for the best tokens only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from rich.progress import track

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.weights import Kind, Tensor
from tools.figures.engine import span
from tools.figures.perplexity import text_ids
from tools.script import Columns, err, options, save, show, stamped

GROUP, PANEL, CONTEXT = 32, 16, 256
WINDOWS, ROWS = 8, 8
UPPER = {Kind.Q8_0: (6, 5, 4), Kind.Q6_K: (5, 4, 3)}
TIMED_ROWS, CALLS = (1, 2, 4, 8), 4

SURVIVORS: Columns = {
    "model": "{model}", "bits": "{bits} of {all_bits}", "bytes": "{bytes:.0%}",
    "tokens that survive": "{tokens:.0f}", "panels of one row": "{panels:.1%}",
    "of 8 rows": "{panels_of_8:.1%}", "bytes of one row, with them": "{read:.0%}",
    "of 8 rows, with them": "{read_of_8:.0%}",
}  # fmt: skip
TIMES: Columns = {
    "model": "{model}", "rows": "{rows}", "forward, ms": "{ms:.2f}",
    "best tokens only": "{screened_ms:.2f}", "saved": "{saved:.1%}",
    "quartiles": "{low:.1%} to {high:.1%}",
}  # fmt: skip


def integers(head: Tensor, rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Float32 [rows, groups, 32]: the signed integers of a Q8_0 or Q6_K head, and their scales."""
    blocks = np.ascontiguousarray(head.data[rows])
    count = len(blocks)
    if head.kind == Kind.Q8_0:
        blocks = blocks.reshape(count, -1, 34)
        scales = np.repeat(blocks[..., :2].copy().view("<f2").astype(np.float32), GROUP, 2)
        return blocks[..., 2:].view(np.int8).astype(np.float32), scales
    blocks = blocks.reshape(count, -1, 210)
    factors = blocks[..., 192:208].view(np.int8) * blocks[..., 208:].copy().view("<f2")
    scales = np.repeat(factors.astype(np.float32), 16, 2).reshape(count, -1, GROUP)
    values = replace(head, data=head.data[rows], shape=scales.shape).float32()
    return np.rint(np.divide(values, scales, out=0 * values, where=scales != 0)), scales


def inputs(checkpoint: Checkpoint, backend: NativeBackend) -> NDArray[np.float32]:
    """Float32 [windows * rows, groups, 32]: what the head multiplies, rounded as the core does."""
    ids = np.array(text_ids(checkpoint, None, CONTEXT * WINDOWS), np.int32)
    last = checkpoint.config.layers - 1
    states = []
    for window in ids.reshape(WINDOWS, CONTEXT):
        asked = replace(span(window, 0, 1), hidden=(last,))
        states.append(backend.forward([asked])[0].hidden[last][-ROWS:])
    state = np.concatenate(states)
    mean = (state**2).mean(1, keepdims=True)
    norm = checkpoint.weights["norm"].float32()
    normed = state / np.sqrt(mean + checkpoint.config.norm_eps) * norm
    groups = normed.reshape(len(normed), -1, GROUP)
    scales = np.abs(groups).max(2, keepdims=True) / 127
    return (np.rint(groups / scales) * scales).astype(np.float32)


def survivors(checkpoint: Checkpoint, x: NDArray[np.float32]) -> Iterator[dict[str, Any]]:
    """For each number of upper bits, what is left of the vocabulary."""
    head = checkpoint.weights["embed" if checkpoint.config.tied_head else "head"]
    all_bits = 8 if head.kind == Kind.Q8_0 else 6
    flat = x.reshape(len(x), -1).T
    norms = np.linalg.norm(x, axis=2).T
    vocabulary = checkpoint.config.vocab_size
    exact = np.empty((vocabulary, len(x)), np.float32)
    about = {bits: np.empty_like(exact) for bits in UPPER[head.kind]}
    error = {bits: np.empty_like(exact) for bits in UPPER[head.kind]}
    for first in track(range(0, vocabulary, 4096), description=checkpoint.config.name, console=err):
        part = slice(first, min(first + 4096, vocabulary))
        whole, scales = integers(head, part)
        exact[part] = (whole * scales).reshape(len(whole), -1) @ flat
        for bits in UPPER[head.kind]:
            step = 1 << (all_bits - bits)
            upper = np.floor(whole / step) * step + (step - 1) / 2
            about[bits][part] = (upper * scales).reshape(len(whole), -1) @ flat
            error[bits][part] = np.linalg.norm((whole - upper) * scales, axis=2) @ norms
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[head.kind.name]]
    for bits in UPPER[head.kind]:
        # A byte for the norm of each group.
        kept = (size - block * (all_bits - bits) // 8 + block // GROUP) / size
        left = about[bits] + error[bits] >= exact.max(0)
        panels = np.add.reduceat(left, np.arange(0, vocabulary, PANEL)) > 0
        share = float(panels.mean())
        share_of_8 = float(panels.reshape(len(panels), WINDOWS, ROWS).any(2).mean())
        yield {
            "model": checkpoint.config.name, "bits": bits, "all_bits": all_bits, "bytes": kept,
            "tokens": float(left.sum(0).mean()), "most_tokens": int(left.sum(0).max()),
            "panels": share, "panels_of_8": share_of_8,
            "read": kept + share, "read_of_8": kept + share_of_8,
        }  # fmt: skip


def times(checkpoint: Checkpoint, backend: NativeBackend, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of forwards with their best tokens on windows of text; those with all logits and
    those without take turns."""
    ids = np.array(text_ids(checkpoint, None, CONTEXT * WINDOWS), np.int32)
    core = backend._model()
    taken: dict[tuple[bool, int], list[float]] = defaultdict(list)
    backend.reserve(CONTEXT // PAGE + 1)

    def best(rows: int, window: np.ndarray, only_best: bool) -> list[int]:
        one = span(window[CONTEXT - rows :], CONTEXT - rows, rows)
        begun = time.perf_counter()
        logits = core.forward([one], None, only_best)[0][0]
        tokens: list[int] = logits.argmax().tolist()
        taken[only_best, rows].append(1e3 * (time.perf_counter() - begun))
        return tokens

    windows = list(ids.reshape(WINDOWS, CONTEXT))
    for index in track(range(rounds), description="forwards", console=err):
        window = windows[index % WINDOWS]
        backend.forward([span(window, 0, 1)])
        for rows in TIMED_ROWS:
            for call in range(CALLS):
                order = (False, True) if call % 2 else (True, False)
                found = [best(rows, window, only) for only in order]
                if found[0] != found[1]:
                    raise SystemExit(f"{rows} rows: the best tokens differ")
    for rows in TIMED_ROWS:
        full, screened = (np.array(taken[only, rows]) for only in (False, True))
        # Calls beside each other are compared: the machine's speed changes within a run.
        low, middle, high = np.quantile(1 - screened / full, (0.25, 0.5, 0.75))
        yield {
            "model": checkpoint.config.name, "rows": rows, "ms": median(full),
            "screened_ms": median(screened), "saved": middle, "low": low, "high": high,
        }  # fmt: skip


def main() -> None:
    parser = options(__doc__, rounds=16)
    parser.add_argument("models", nargs="*", default=[""], help="files; none: the default model")
    given = parser.parse_args()
    left: list[dict[str, Any]] = []
    spent: list[dict[str, Any]] = []
    for name in given.models:
        checkpoint = open_model(name or None)
        backend = NativeBackend(checkpoint.config, checkpoint.weights)
        backend.reserve(CONTEXT // PAGE + 1)
        spent += times(checkpoint, backend, given.rounds)
        left += survivors(checkpoint, inputs(checkpoint, backend))
        backend.close()
    show(left, SURVIVORS)
    show(spent, TIMES)
    save(stamped(survivors=left, forwards=spent), given.out)


if __name__ == "__main__":
    main()
