"""The circumstances of a result: processor, memory, versions of the code, digest of the weights."""

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
    """Processor, usable cores, bytes of memory, instruction sets, system."""

    cpu: str
    cores: int
    memory_bytes: int
    isa: tuple[str, ...]
    system: str
    python: str


class Stamp(TypedDict):
    """The time, code and machine of a result."""

    created: str
    commit: str
    machine: Machine


def stamp(folder: Path = Path(__file__).parent) -> Stamp:
    """The stamp of now and here; ``folder`` is in the repository of the measured code."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"created": created, "commit": commit(folder), "machine": describe()}


def place_of(stamp: Stamp) -> dict[str, Any]:
    """The facts that comparable measurements must share: the code and the machine.

    The mark of uncommitted changes is left out, because a run's own files may be such a change.
    """
    machine = asdict(stamp["machine"])
    del machine["memory_bytes"]  # The same machine may have a little more after its next start.
    return {"commit": stamp["commit"].rstrip("+"), **versions(), **machine}


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> Machine:
    """A description of this machine."""
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
    """The checked-out commit, with ``+`` if files have changed since.

    Empty without git, and for a folder without any file in git: an installed package may lie in
    somebody's own repository.
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
"""Bytes at each end of a weight file that enter the digest; a smaller file enters as a whole."""
OF_A_TENSOR = 1 << 16
"""Bytes at each end of a tensor that enter the digest of loaded weights."""


def weights_of(model: str) -> Path:
    """The file or folder of a model.

    Raises:
        InvalidModel: the package that has the model is missing.
    """
    entry = find(model)
    path = entry.path if entry else None
    if entry is not None and entry.package is None and path is None:
        raise InvalidModel("model", model, entry.fix)
    return path or Path(model)


def digest(path: Path) -> str:
    """SHA-256 of a model's weights, from the sizes and both ends of its files."""
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
    """SHA-256 of loaded weights, with merged adapters, from both ends of each tensor.

    Empty without weights.
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
    """Package -> version, of this package and of those that do its arithmetic."""
    found = {"paradecode": __version__}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
