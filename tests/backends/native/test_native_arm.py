"""The NEON kernels, compiled for another processor and run under emulation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from repository import ROOT

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SOURCES = [
    path for path in sorted((ROOT / "csrc").glob("*.cpp"))
    if not path.stem.startswith(("binding", "python_", "isa_a"))
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["max", "cortex-a57"])
def test_the_self_test_passes_on_arm(tmp_path: Path, processor: str) -> None:
    """Dot products where the processor has them (``max``), the portable kernels elsewhere.

    The self test compares each instruction set with the portable one, bit for bit.
    """
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(
                f"{tool} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
            )
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-pthread", f"-I{ROOT / 'csrc'}"]
    objects = []
    for source in (*SOURCES, Path(__file__).with_name("selftest.cpp")):
        own = ["-march=armv8.2-a+dotprod"] if source.stem == "isa_neon" else []
        objects.append(str(tmp_path / f"{source.stem}.o"))
        subprocess.run([COMPILER, *flags, *own, "-c", str(source), "-o", objects[-1]], check=True)
    program = str(tmp_path / "selftest")
    subprocess.run([COMPILER, "-static", "-pthread", *objects, "-o", program], check=True)
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("ok")
