"""Measures the perplexity of every weight format on the same text, with the same windows.

    python -m tools.figures.perplexity [--tokens 50000] [--text FILE] [--out FILE.json]

The default text is the language reference that Python ships as ``pydoc_data.topics``: English prose
and code, which every machine has. Each window of 512 tokens is scored without the text before it.
If ``make bench`` has made llama.cpp's environment, llama.cpp scores the same file too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Backend
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from tools.figures.engine import span
from tools.figures.llama_cpp import SECONDS, open_rows
from tools.peers.process import Worker
from tools.script import options, save, show, stamped

WINDOW = 512
FORMATS = (
    ("torch", "fp32"), ("native", "f32"), ("native", "bf16"), ("native", "q8"), ("native", "auto"),
    ("native", "q4"), ("llama.cpp", "the same file"),
)  # fmt: skip

COLUMNS = {
    "backend": "{backend}", "weights": "{weights}", "perplexity": "{perplexity:.3f}",
    "NLL (nats)": "{nll:.4f}", "difference to f32": "{nll_difference:+.4f}",
    "± 95 %": "{spread:.4f}",
}  # fmt: skip


def nll(backend: Backend, ids: list[int]) -> np.ndarray:
    """Return float64 [N]: the negative log-likelihood of each token, in nats.

    The first token of each window has none.
    """
    backend.reserve(WINDOW // PAGE)
    losses = []
    starts = range(0, len(ids) - WINDOW + 1, WINDOW)
    for start in track(starts, f"{backend.name} {backend.config.name}"):
        window = np.array(ids[start : start + WINDOW], np.int32)
        asked = replace(span(window, 0, 0), logits=np.arange(WINDOW - 1, dtype=np.int32))
        logits = backend.forward([asked])[0].logits
        losses.append(-logits.log_probability(window[1:, None])[:, 0])
    return np.concatenate(losses)


def peer_nll(worker: Worker, ids: list[int]) -> np.ndarray:
    """Return the same losses from a worker that answers ``{"tokens"}``, and end the worker."""
    try:
        starts = range(0, len(ids) - WINDOW + 1, WINDOW)
        windows = [ids[start : start + WINDOW] for start in starts]
        asked = [worker.ask({"tokens": window}, SECONDS) for window in track(windows, "peer")]
    finally:
        worker.kill()
    return np.concatenate([answer["nll"] for answer in asked])


def text_ids(checkpoint: Checkpoint, text: Path | None, tokens: int) -> list[int]:
    """Return the first token ids of a file's text, or of the default text."""
    if text:
        words = text.read_text("utf-8")
    else:
        from pydoc_data.topics import topics

        words = "\n\n".join(topics[name] for name in sorted(topics))
    return checkpoint.tokenizer.encode(words, special=False, parse_special=False)[:tokens]


def row(name: str, weights: str, losses: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Return a line of the table; ``spread`` is the 95 % interval of the mean difference."""
    change = losses - reference
    return {
        "backend": name, "weights": weights, "tokens": len(losses),
        "perplexity": math.exp(losses.mean()), "nll": losses.mean(),
        "nll_difference": change.mean(), "spread": 1.96 * change.std() / math.sqrt(len(change)),
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__, tokens=50_000)
    parser.add_argument("--model")
    parser.add_argument("--text", type=Path)
    given = parser.parse_args()
    checkpoint = open_model(given.model)
    ids = text_ids(checkpoint, given.text, given.tokens)
    reference, rows = None, []
    for name, dtype in FORMATS:
        if name == "llama.cpp":
            worker = open_rows(checkpoint.source, WINDOW)
            if worker is None:
                continue
            losses = peer_nll(worker, ids)
        else:
            backend = open_backend(name, checkpoint.config, checkpoint.weights, dtype=dtype)
            losses = nll(backend, ids)
            backend.close()
        reference = losses if reference is None else reference
        rows.append(row(name, dtype, losses, reference))
    show(rows, COLUMNS)
    save(stamped(tokens=given.tokens, formats=rows), given.out)


if __name__ == "__main__":
    main()
