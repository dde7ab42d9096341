"""Measures the perplexity of every weight format on the same text, with the same windows.

    python -m tools.figures.perplexity [--tokens 50000] [--window 512] [--weights q8 auto]
        [--text FILE] [--out FILE.json]

The default text is the language reference that Python ships as ``pydoc_data.topics``: English prose
and code, which every machine has, under the PSF licence. Each window is scored without the text
before it. If the model's prompts begin with BOS, windows do, too. If ``make bench`` has made
llama.cpp's environment, llama.cpp scores the same file too.
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
"""Default number of tokens of a window, and the most tokens of a forward."""
FORMATS = (
    ("torch", "fp32"), ("native", "f32"), ("native", "bf16"), ("native", "q8"), ("native", "auto"),
    ("native", "q4"), ("llama.cpp", "the same file"),
)  # fmt: skip

COLUMNS = {
    "backend": "{backend}", "weights": "{weights}", "perplexity": "{perplexity:.3f}",
    "NLL (nats)": "{nll:.4f}", "difference to the first": "{nll_difference:+.4f}",
    "± 95 %": "{spread:.4f}",
}  # fmt: skip


def windows_of(checkpoint: Checkpoint, ids: list[int], size: int) -> list[list[int]]:
    """Return the windows of a text; each begins with BOS if the model's prompts do."""
    config = checkpoint.config
    begin = [config.bos_token] if config.add_bos and config.bos_token is not None else []
    step = size - len(begin)
    return [begin + ids[at : at + step] for at in range(0, len(ids) - step + 1, step)]


def nll(backend: Backend, windows: list[list[int]]) -> np.ndarray:
    """Return float64 [N]: the negative log-likelihood of each token, in nats.

    The first token of each window has none.
    """
    losses = []
    for window in track(windows, f"{backend.name} {backend.config.name}"):
        backend.reserve(-(-len(window) // PAGE))
        tokens = np.array(window, np.int32)
        for at in range(0, len(tokens) - 1, WINDOW):
            after = tokens[at + 1 : at + 1 + WINDOW]
            rows = np.arange(len(after), dtype=np.int32)
            asked = replace(span(tokens[at : at + WINDOW], at, 0), logits=rows)
            logits = backend.forward([asked])[0].logits
            losses.append(-logits.log_probability(after[:, None])[:, 0])
    return np.concatenate(losses)


def peer_nll(worker: Worker, windows: list[list[int]]) -> np.ndarray:
    """Return the same losses from a worker that answers ``{"tokens"}``, and end the worker."""
    try:
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
    parser = options(__doc__, tokens=50_000, window=WINDOW)
    parser.add_argument("--model")
    parser.add_argument("--text", type=Path)
    known = [dtype for _, dtype in FORMATS[:-1]]
    parser.add_argument("--weights", nargs="+", choices=known, default=known)
    given = parser.parse_args()
    checkpoint = open_model(given.model)
    most = checkpoint.config.context_length
    if not 2 <= given.window <= most:
        parser.error(f"--window {given.window}: give 2 to {most}, the context of the model")
    ids = text_ids(checkpoint, given.text, given.tokens)
    windows = windows_of(checkpoint, ids, given.window)
    if not windows:
        parser.error(f"the text has {len(ids)} tokens: give a longer one, or a smaller --window")
    reference, rows = None, []
    for name, dtype in FORMATS:
        if name == "llama.cpp":
            worker = open_rows(checkpoint.source, given.window)
            if worker is None:
                continue
            losses = peer_nll(worker, windows)
        elif dtype in given.weights:
            backend = open_backend(name, checkpoint.config, checkpoint.weights, dtype=dtype)
            losses = nll(backend, windows)
            backend.close()
        else:
            continue
        reference = losses if reference is None else reference
        rows.append(row(name, dtype, losses, reference))
    show(rows, COLUMNS)
    facts = {"model": checkpoint.config.name, "window": given.window, "tokens": given.tokens}
    save(stamped(**facts, formats=rows), given.out)


if __name__ == "__main__":
    main()
