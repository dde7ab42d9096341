"""Measures seconds of commands in a clone; the build says what is missing if it cannot begin."""

import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT
from tools.seconds import STEPS, seconds


@pytest.mark.wide
def test_commands_run_in_a_clone_in_which_files_were_changed() -> None:
    changed = "grep -q change csrc/plan.cpp"
    found = seconds({"one": ("test -f Makefile", ""), "two": (changed, "csrc/plan.cpp")})
    assert [*found][-2:] == ["one", "two"]
    assert found["machine"].endswith("cores")
    assert "it failed with status 1" in seconds({"three": (changed, "")})["three"]


def test_what_is_changed_is_there() -> None:
    assert all([*ROOT.glob(changed)] for _, changed in STEPS.values() if changed)


def test_a_missing_compiler_is_named_with_how_to_get_one(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("cmake"), "-S", ROOT, "-B", tmp_path]
    # pip's builder names a compiler in CXX.
    run = subprocess.run(command, env={"PATH": str(tmp_path), "CXX": "g++"}, capture_output=True)
    assert b"A C++20 compiler is missing. Get one" in b" ".join(run.stderr.split())
