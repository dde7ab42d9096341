"""llama.cpp and ik_llama.cpp from source checkouts, which the user gives."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).with_name("workers") / "ik_llama_cpp.cpp"
OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "GGML_OPENMP=ON", "BUILD_SHARED_LIBS=OFF",
    "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF",
)  # fmt: skip


class InstallError(Exception):
    """A peer that cannot be installed here; the message is the reason in the results."""


def find_source(variable: str, root: Path) -> Path:
    """The checkout that an environment variable names; an archive is unpacked below ``root``.

    Raises:
        InstallError: the variable is not set, or names no such source.
    """
    given = Path(os.environ.get(variable, ""))
    if not given.name:
        raise InstallError(f"set {variable} to a source checkout or an archive of one")
    if given.is_file():
        folder = root / "sources" / f"{given.stem}-{given.stat().st_size}"
        if not folder.is_dir():
            try:
                shutil.unpack_archive(given, folder)
            except (shutil.ReadError, OSError) as error:
                raise InstallError(f"{variable}={given}: {error}") from None
        given = folder
    for folder in (given, *sorted(given.glob("*/"))):
        if (folder / "include" / "llama.h").is_file():
            return folder.resolve()
    raise InstallError(f"{variable}={given}: no include/llama.h is in it")


def version_of(source: Path) -> str:
    """The commit of a checkout; the folder's name if it has no commit."""
    asked = ["git", "-C", str(source), "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True)
    found = (source / ".git").exists() and done.returncode == 0
    return done.stdout.strip() if found else source.name


def building(source: Path, programs: Path, target: str) -> Iterator[list[str]]:
    """The commands that compile a target for this machine in the checkout's ``build``."""
    build, cmake = source / "build", str(programs / "cmake")
    made = (build / "CMakeCache.txt").is_file()
    ninja = [] if made else ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"]
    options = [f"-D{option}" for option in OPTIONS]
    yield [cmake, "-S", str(source), "-B", str(build), *ninja, *options]
    # One compiler at a time: its kernels take gigabytes of memory each.
    yield [cmake, "--build", str(build), "--parallel", "1", "--target", target]


def commands(source: Path, programs: Path) -> Iterator[list[str]]:
    """What compiles the libraries in the checkout's ``build``, and our program in ``programs``.

    What a build made before is used again, with whichever generator it has.
    """
    yield from building(source, programs, "llama")
    build = source / "build"
    libraries = [build / "src" / "libllama.a", build / "ggml" / "src" / "libggml.a"]
    headers = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
    yield [
        os.environ.get("CXX", "c++"), "-std=c++17", "-O2", f'-DVERSION="{version_of(source)}"',
        *headers, str(PROGRAM), *map(str, libraries), "-fopenmp", "-ldl", "-lpthread",
        "-o", str(programs / PROGRAM.stem),
    ]  # fmt: skip
