"""The core for ARM is compiled by a cross compiler and runs under emulation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
PYTHON = ROOT / "build/arm64/root/usr/bin/arm64-python"
KERNELS = {
    "max": ["i8mm", "neon", "portable"], "neoverse-n1": ["neon", "portable"],
    "cortex-a57": ["portable"],
}  # fmt: skip
"""Emulated processor -> the kernels that it can run, the best first."""

ANSWERS = """
import json
import os

from paradecode import LLM

llm = LLM("paradecode/tiny-autoregressive", backend="native", threads=2)
asked = [[{"role": "user", "content": text}] for text in ("reverse: Ben Sam Art", "sort: Jo Al")]
answers = [
    llm.chat(messages, decoder=decoder, temperature=temperature, seed=3, max_tokens=12).token_ids
    for decoder in ("greedy", "prompt-lookup(budget=fixed)", "token-recycling(budget=fixed)")
    for temperature in (0.0, 0.9)
    for messages in asked
]
print(json.dumps({"kernels": llm.backend.instruction_set[0], "answers": answers}))
"""


@pytest.fixture(scope="module")
def selftest(tmp_path_factory: pytest.TempPathFactory) -> str:
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(
                f"{tool} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
            )
    room = str(tmp_path_factory.mktemp("arm"))
    options = [
        "-DPARADECODE_SANITIZE=none", "-DPARADECODE_KERNELS=i8mm;neon;portable",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'tools/arm64/toolchain.cmake'}",
    ]  # fmt: skip
    subprocess.run(["cmake", "-S", str(ROOT), "-B", room, "-G", "Ninja", *options], check=True)
    subprocess.run(["cmake", "--build", room], check=True)
    return f"{room}/paradecode_selftest"


@pytest.mark.slow
@pytest.mark.parametrize("processor", KERNELS)
def test_the_self_test_passes_on_arm(selftest: str, processor: str) -> None:
    """The self test compares all kernels that the processor has, bit for bit.

    ``max`` multiplies with int8 matrices, with dot products and with neither.
    """
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, selftest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*KERNELS[processor], "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("processor", KERNELS)
def test_the_wheel_decodes_on_arm_as_here(tmp_path: Path, processor: str) -> None:
    """The wheel in ARM's own Python gives the same tokens as this machine, with any kernels."""
    if not PYTHON.exists():
        pytest.skip("there is no wheel for ARM; `make wheel-arm64` makes and installs one")

    def run(python: str) -> dict[str, object]:
        done = subprocess.run(
            [python, "-c", ANSWERS], cwd=tmp_path, env={**os.environ, "QEMU_CPU": processor},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    there, here = run(str(PYTHON)), run(sys.executable)
    assert there["kernels"] == KERNELS[processor][0]
    assert there["answers"] == here["answers"]
