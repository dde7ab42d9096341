"""Writes a certificate as JSON, with the model and the machine of the test."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.cli.information import machine_record, native_record
from paradecode.core.errors import ParadecodeError
from paradecode.llm import LLM
from paradecode.models.catalogue import find
from paradecode_lab.measure.certificate.certify import Certificate
from paradecode_lab.measure.certificate.requests import rows_after

SCHEMA = "paradecode-certificate/1"
PROBE = 16
"""Number of tokens of the fixed text whose following logits are the fingerprint."""


def certificate_record(
    certificate: Certificate, llm: LLM, model: str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole certificate as a mapping, ready for ``json.dumps``.

    Args:
        model: the user's name for the model.
        settings: settings with which the model was opened (backend, dtype, device, threads).
    """
    fields = asdict(certificate)
    law = certificate.distribution
    if law is not None:
        fields["distribution"] |= {"same_law": law.same_law, "passed": law.passed}
    return {
        "schema": SCHEMA,
        "verdict": certificate.verdict,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {**machine_record(), "native": native_record()},
        "model": {
            "name": llm.model,
            "architecture": llm.config.architecture,
            "files": {path.name: _file_hash(path) for path in _weight_files(model)},
            "fingerprint": fingerprint(llm.backend),
            "draft_model": llm.draft_model,
        },
        "backend": {"name": llm.backend.name, **settings},
        **fields,
    }


def fingerprint(backend: Backend) -> str:
    """Return the SHA-256 of the logits after a fixed text.

    It depends on the weights, the dtype and the kernels.
    """
    top = min(backend.config.vocab_size, 1 << 15)
    tokens = [(7 * i * i + 3 * i + 1) % top for i in range(PROBE)]
    every = np.arange(backend.config.vocab_size)[None, :]
    values = rows_after(backend, tokens, [PROBE]).gather(every)
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()


def _weight_files(model: str | None) -> list[Path]:
    """Return the files from which the model was read; none for a model from the hub."""
    try:
        entry = find("default" if model is None else model)
        path = entry.path if entry else Path(model or "").expanduser()
        if path is None or not path.exists():
            return []
        if path.is_file():
            return [path]
        return sorted(
            [*path.glob("*.safetensors"), *path.glob("*.gguf"), *path.glob("config.json")]
        )
    except (OSError, ValueError, RuntimeError, ParadecodeError):
        return []


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
