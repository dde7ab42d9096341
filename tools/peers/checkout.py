"""Compiles llama.cpp and ik_llama.cpp from source checkouts that the user names."""

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
    """A peer cannot be installed here; the message becomes the reason in the results."""


def find_source(variable: str, root: Path) -> Path:
    """Return the checkout that a variable names; an archive is unpacked below ``root``.

    Raises:
        InstallError: the variable is not set, or does not name such a source.
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
    """Return the commit of a checkout, or the folder's name if it has no commit."""
    asked = ["git", "-C", str(source), "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True)
    found = (source / ".git").exists() and done.returncode == 0
    return done.stdout.strip() if found else source.name


def building(source: Path, programs: Path, target: str) -> Iterator[list[str]]:
    """Yield the commands that compile a target for this machine into the checkout's ``build``."""
    build, cmake = source / "build", str(programs / "cmake")
    made = (build / "CMakeCache.txt").is_file()
    ninja = [] if made else ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"]
    options = [f"-D{option}" for option in OPTIONS]
    yield [cmake, "-S", str(source), "-B", str(build), *ninja, *options]
    # One compiler at a time, because each needs gigabytes of memory for the kernels.
    yield [cmake, "--build", str(build), "--parallel", "1", "--target", target]


def commands(source: Path, programs: Path) -> Iterator[list[str]]:
    """Yield the commands that compile the libraries, and then our program into ``programs``.

    An existing ``build`` folder of the checkout is used again, with the generator that it has.
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
