"""Describes how a result came about: processor, memory, versions and the digest of the weights."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from paradecode import __version__
from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import find
from paradecode.models.weights import Weights

# The instruction sets that decide how fast inference can be.
ISA = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "sve", "bf16",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A machine: its processor, usable cores, bytes of memory, instruction sets and system."""

    cpu: str
    cores: int
    memory_bytes: int
    isa: tuple[str, ...]
    system: str
    python: str


class Stamp(TypedDict):
    """The time, the commit and the machine of a result."""

    created: str
    commit: str
    machine: Machine


def stamp(folder: Path = Path(__file__).parent) -> Stamp:
    """Return the present time, the commit checked out in ``folder``, and this machine."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"created": created, "commit": commit(folder), "machine": describe()}


def place_of(stamp: Stamp) -> dict[str, Any]:
    """Return the facts that comparable measurements must share: the code and the machine.

    The mark of uncommitted changes is left out, because a run's own files may be such a change.
    """
    machine = asdict(stamp["machine"])
    # The same machine may have a little more memory after its next start.
    del machine["memory_bytes"]
    return {"commit": stamp["commit"].rstrip("+"), **versions(), **machine}


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> Machine:
    """Return a description of this machine."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 0
    cpu = info.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in info:
        cpu += f" (family {info['cpu family']}, model {info.get('model', '?')})"
    return Machine(
        cpu=cpu,
        cores=usable_cores(),
        memory_bytes=memory,
        isa=tuple(name for name in ISA if name in flags),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


def commit(folder: Path) -> str:
    """Return the checked-out commit, with ``+`` at its end if files differ from it.

    The result is empty without git, and if git tracks no file in ``folder``: an installed package
    may lie in a user's own repository.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD") if git("ls-files", ".") else ""
        return head + "+" if head and git("status", "--porcelain") else head
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


DIGESTED = 1 << 26
"""Number of bytes at each end of a weight file that enter the digest.

A file with fewer bytes enters as a whole.
"""
OF_A_TENSOR = 1 << 16
"""Number of bytes at each end of a tensor that enter the digest of loaded weights."""


def weights_of(model: str) -> Path:
    """Return the file or folder of a model.

    Raises:
        InvalidModel: the package that contains the model is not installed.
    """
    entry = find(model)
    path = entry.path if entry else None
    if entry is not None and entry.package is None and path is None:
        raise InvalidModel("model", model, entry.fix)
    return path or Path(model)


def digest(path: Path) -> str:
    """Return a SHA-256 of a model's weights, taken from the sizes and both ends of its files."""
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


def digest_of(weights: Weights) -> str:
    """Return the SHA-256 of loaded weights, computed from both ends of each tensor.

    Adapters that were merged into the weights are included. It is empty without weights.
    """
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tensor.kind.name} {tensor.shape}\n".encode())
        first = last = np.atleast_1d(tensor.data)
        while first.ndim > 1 and first[:1].nbytes > OF_A_TENSOR:  # A row may be a whole expert.
            first, last = first[0], last[-1]
        rows = -(-OF_A_TENSOR // max(1, first[:1].nbytes))
        found.update(first[:rows].tobytes())
        found.update(last[-rows:].tobytes())
    return found.hexdigest() if weights else ""


def versions() -> dict[str, str]:
    """Return the version of this package, and of each package that does its arithmetic."""
    found = {"paradecode": __version__}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
