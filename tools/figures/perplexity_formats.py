"""Measures the perplexity of GGUF's formats, with one model quantised to each of them.

    python -m tools.figures.perplexity_formats MODEL.gguf LLAMA_QUANTIZE --out FILE.json

``LLAMA_QUANTIZE`` is the program of llama.cpp or ik_llama.cpp; it is run with ``--pure``, so that
every matrix has the format. Text and windows are the same as in ``tools.figures.perplexity``. Our
core and, if ``make bench`` has installed it, ik_llama.cpp are compared with f32. Rows must be
multiples of 256.

The weights of a model that exists only in few bits are already values of such a format, and
quantising them again would lose nothing. Each weight is therefore first drawn at random, from about
the values that are rounded to it; the result is the f32 model. The same command resumes an
interrupted run.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind

from paradecode.backends import open_backend
from paradecode.models.catalogue import open_model
from paradecode_lab.measure.machine import usable_cores
from tools.figures.llama_cpp import opened
from tools.figures.perplexity import COLUMNS, WINDOW, nll, peer_nll, row, text_ids, windows_of
from tools.peers.environments import IK_LLAMA_CPP
from tools.peers.formats import requantise
from tools.script import options, save, show, stamped

FORMATS = {
    "Q2_K": "q2_k", "Q3_K": "q3_k_m", "Q4_K": "q4_k_m", "Q5_K": "q5_k_m", "Q6_K": "q6_k",
    "Q8_0": "q8_0", "Q5_0": "q5_0", "Q5_1": "q5_1", "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs",
}  # fmt: skip
"""Format -> the name that ``llama-quantize`` uses for it."""

STEPS = {Kind.Q4_K: (32, 15), Kind.Q6_K: (16, 63)}
"""Format -> number of weights that share a scale, and steps from their least to their largest."""

PEER = "ik_llama.cpp"


def drawn_anew(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Draw random weights that come out close to ``values`` when they are rounded to ``kind``.

    The result is float32 and has the shape of ``values``.
    """
    if kind not in STEPS:
        return values
    size, steps = STEPS[kind]
    groups = values.reshape(-1, size)
    step = (groups.max(1, keepdims=True) - groups.min(1, keepdims=True)) / steps
    noise = np.random.default_rng(values.size).random(groups.shape, np.float32) - 0.5
    return (groups + noise * step).reshape(values.shape)


def main() -> None:
    parser = options(__doc__, tokens=8192)
    parser.add_argument("model", type=Path)
    parser.add_argument("quantize", type=Path)
    parser.add_argument("--text", type=Path)
    given = parser.parse_args()
    checkpoint = open_model(str(given.model))
    ids = text_ids(checkpoint, given.text, given.tokens)
    windows = windows_of(checkpoint, ids, WINDOW)
    rows = json.loads(given.out.read_text("utf-8"))["formats"] if given.out.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        source, kept = Path(scratch) / "f16.gguf", given.out.with_suffix(".npy")
        requantise(given.model, source, Kind.F16, set(Kind) - {Kind.F32}, drawn_anew)
        if not kept.exists():
            np.save(kept, native(source, "f32", windows))
        reference = np.load(kept)

        def keep(name: str, weights: str, losses: np.ndarray) -> None:
            rows.append(row(name, weights, losses, reference))
            facts = {"model": checkpoint.config.name, "window": WINDOW, "formats": rows}
            save(stamped(**facts), given.out)

        if not rows:
            keep("native", "f32", reference)
        for name, own in FORMATS.items():
            if any(done["weights"] == name for done in rows):
                continue
            file = Path(scratch) / f"{name}.gguf"
            command = [given.quantize, "--pure", source, file, own, str(usable_cores())]
            subprocess.run(command, check=True, capture_output=True)
            settings = {"model": str(file), "context": WINDOW, "repack": 0, "batch": WINDOW}
            worker = opened(IK_LLAMA_CPP, "ik_llama_cpp_worker.py", settings)
            theirs = None if worker is None else peer_nll(worker, windows)
            keep("native", name, native(file, "auto", windows))
            if theirs is not None:
                keep(PEER, name, theirs)
            file.unlink()
    kept.unlink()
    show(rows, COLUMNS)


def native(file: Path, dtype: str, windows: list[list[int]]) -> np.ndarray:
    """Return float64 [N]: the loss of our core on each token, in nats."""
    checkpoint = open_model(str(file))
    backend = open_backend("native", checkpoint.config, checkpoint.weights, dtype=dtype)
    try:
        return nll(backend, windows)
    finally:
        backend.close()


if __name__ == "__main__":
    main()
