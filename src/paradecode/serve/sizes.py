"""Estimate the memory that a model will take in a worker, before it is loaded there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from paradecode.serve.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from paradecode.models.checkpoint import Checkpoint

BITS = {"q4": 5, "q8": 9, "bf16": 16, "f16": 16, "f32": 32, "fp32": 32, "fp64": 64}
"""Format of weights -> bits of a weight, with the scales of its block."""

Signature = tuple[tuple[int, int], ...]


def signature(settings: WorkerSettings) -> Signature:
    """Return times and sizes of the model's files, which differ after a file has changed."""
    found = []
    for name in (settings.model, settings.draft_model, settings.adapter):
        path = Path(name or "")
        for file in sorted(path.iterdir()) if name and path.is_dir() else [path]:
            if name and file.is_file():
                about = file.stat()
                found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def memory_of(settings: WorkerSettings) -> int:
    """Return the bytes of a worker's weights and K/V memory: those of its model and draft model.

    The model's files are opened, and their headers are read.

    Raises:
        InvalidInput, InvalidModel: the model cannot be opened.
    """
    # Slow imports, which only servers with a bound on their memory need.
    from paradecode.models.adapter import merge_file
    from paradecode.models.catalogue import open_model

    models = [open_model(settings.model)]
    if settings.adapter is not None:
        models[0] = merge_file(models[0], Path(settings.adapter))
    if settings.draft_model is not None:
        models.append(open_model(settings.draft_model))
    return sum(_held(model, settings) for model in models)


def _held(model: Checkpoint, settings: WorkerSettings) -> int:
    from paradecode.backends.native import core_is_built

    native = settings.device == "cpu" and settings.backend in ("auto", "native") and core_is_built()
    kept: frozenset[object] = frozenset()
    if native:
        from paradecode.backends.native.backend import OWN

        kept = frozenset(OWN)
    usual = 9 if native else 32 if settings.device == "cpu" else 16
    bits = usual if settings.dtype == "auto" else BITS.get(settings.dtype, usual)
    weights = slots = 0
    for name, shape in model.config.tensors().items():
        tensor = model.weights.get(name)
        own = settings.dtype == "auto" and tensor is not None and tensor.kind in kept
        weights += tensor.data.nbytes if tensor and own else math.prod(shape) * bits // 8
        if name.endswith((".k", ".v")):
            slots += shape[0]  # The K/V of one token in this layer.
    cached = 2 if native else max(bits // 8, 2)
    return weights + slots * cached * settings.engine_limits().kv_tokens
