"""Which weights and which packages a result is about."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paradecode import __version__
from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import find

DIGESTED = 1 << 26
"""Bytes of each end of a weight file that enter the digest: all of a small one."""


def weights_of(model: str) -> Path:
    """The file or folder of a model.

    Raises:
        InvalidModel: one that should come with the package is not there.
    """
    entry = find(model)
    path = entry.path if entry else None
    if entry is not None and entry.package is None and path is None:
        fix = "this installation lacks it; make it: `paradecode train diffusion FOLDER`, then"
        raise InvalidModel("model", model, f"{fix} --model FOLDER/model")
    return path or Path(model)


def digest(path: Path) -> str:
    """SHA-256 of a model's weights: of the sizes and both ends of its files."""
    files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.gguf"))
    found = hashlib.sha256()
    for file in files or ([path] if path.is_file() else []):
        size = file.stat().st_size
        found.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            found.update(opened.read(DIGESTED))
            opened.seek(max(DIGESTED, size - DIGESTED))
            found.update(opened.read(DIGESTED))
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Package -> version, of this one and of what does its arithmetic."""
    found = {"paradecode": __version__}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
