"""Tests the measured seconds of commands in a clone."""

import subprocess

import pytest

from repository import ROOT
from tools.seconds import STEPS, seconds


@pytest.mark.wide
def test_commands_run_in_a_clone_in_which_files_were_changed() -> None:
    changed = "grep -q change csrc/plan.cpp"
    found = seconds({"one": ("test -f Makefile", ""), "two": (changed, "csrc/plan.cpp")})
    assert [*found][-2:] == ["one", "two"]
    assert found["machine"].endswith("cores")
    with pytest.raises(subprocess.CalledProcessError):
        seconds({"three": (changed, "")})


def test_what_is_changed_is_there() -> None:
    assert all([*ROOT.glob(changed)] for _, changed in STEPS.values() if changed)
