"""Tests the build's messages where it cannot go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytest.importorskip("cmake")


@pytest.mark.parametrize("named", [{}, {"CXX": "g++ -O2"}])
def test_a_missing_compiler_is_named_with_how_to_get_one(
    tmp_path: Path, named: dict[str, str]
) -> None:
    command = [str(Path(sys.executable).with_name("cmake")), "-S", str(ROOT), "-B", str(tmp_path)]
    # The program is a script, which needs only its own interpreter.
    run = subprocess.run(command, env={"PATH": str(tmp_path), **named}, capture_output=True)
    assert run.returncode
    said = " ".join(run.stderr.decode().split())
    assert "A C++20 compiler is missing. Get one (Debian and Ubuntu: apt install g++;" in said
