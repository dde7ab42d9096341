"""Perplexity of every weight format on the same text, with the same windows.

    python bench/perplexity.py [--tokens 50000] [--text FILE] [--out FILE.json]

The default text is the language reference that Python ships as ``pydoc_data.topics``: English
prose and code, on every machine. Each window of 512 tokens is scored from its own start. Where
``make bench`` has made llama.cpp's environment, it scores the same file too.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.measure.machine import usable_cores
from paradecode.models.catalogue import open_model

FOLDER = Path(__file__).parent
PYTHON = FOLDER / "out" / "envs" / "llama-cpp" / "bin" / "python"
WORKER = FOLDER / "peers" / "workers" / "llama_cpp_nll.py"
WINDOW = 512
FORMATS = (
    ("torch", "fp32"), ("native", "f32"), ("native", "bf16"), ("native", "q8"), ("native", "auto"),
    ("native", "q4"), ("llama.cpp", "the same file"),
)  # fmt: skip


def nll(backend: Backend, ids: list[int]) -> np.ndarray:
    """float64: negative log-likelihood of every token but the first of each window, in nats."""
    backend.reserve(WINDOW // PAGE)
    losses = []
    starts = range(0, len(ids) - WINDOW + 1, WINDOW)
    for start in track(starts, f"{backend.name} {backend.config.name}"):
        window = np.array(ids[start : start + WINDOW], np.int32)
        slots = np.arange(WINDOW, dtype=np.int32)
        span = Span(
            pages=np.arange(WINDOW // PAGE, dtype=np.int32),
            tokens=window, positions=slots, slots=slots, context=0, logits=slots[:-1],
        )  # fmt: skip
        logits = backend.forward([span])[0].logits
        losses.append(-logits.log_probability(window[1:, None])[:, 0])
    return np.concatenate(losses)


def llama_cpp(model: str, ids: list[int]) -> np.ndarray:
    """The same from llama.cpp."""
    starts = range(0, len(ids) - WINDOW + 1, WINDOW)
    windows = [ids[start : start + WINDOW] for start in starts]
    asked = {"model": model, "threads": usable_cores(), "windows": windows}
    with subprocess.Popen(
        [PYTHON, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        json.dump(asked, process.stdin)
        process.stdin.close()
        lines = track(process.stdout, "llama.cpp", total=len(windows))
        return np.concatenate([json.loads(line) for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkpoint = open_model(options.model)
    if options.text:
        text = options.text.read_text("utf-8")
    else:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = checkpoint.tokenizer.encode(text, special=False, parse_special=False)[: options.tokens]
    table = Table("backend", "weights", "perplexity", "NLL (nats)", "difference to f32", "± 95 %")
    reference, rows = None, []
    for name, dtype in FORMATS:
        if name == "llama.cpp":
            if not PYTHON.exists():
                continue
            losses = llama_cpp(checkpoint.source, ids)
        else:
            backend = open_backend(name, checkpoint.config, checkpoint.weights, dtype=dtype)
            losses = nll(backend, ids)
            backend.close()
        reference = losses if reference is None else reference
        change = losses - reference
        spread = 1.96 * change.std() / math.sqrt(len(change))
        rows.append(
            {
                "backend": name, "weights": dtype, "tokens": len(losses),
                "perplexity": math.exp(losses.mean()), "nll": losses.mean(),
                "nll_difference": change.mean(), "spread": spread,
            }
        )  # fmt: skip
        table.add_row(
            name, dtype, f"{rows[-1]['perplexity']:.3f}", f"{losses.mean():.4f}",
            f"{change.mean():+.4f}", f"{spread:.4f}",
        )  # fmt: skip
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
