"""Tests what a result says about the measured code and weights."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from paradecode.models.weights import Tensor
from paradecode_lab.measure.machine import OF_A_TENSOR, commit, digest_of


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_package_inside_of_other_work_has_no_commit(tmp_path: Path) -> None:
    """A package in a virtual environment has no commit, even if a user's repository contains it."""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package, own = tmp_path / ".venv" / "package", tmp_path / "own"
    for folder in (package, own):
        folder.mkdir(parents=True)
        (folder / "code.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert commit(own) == git("rev-parse", "HEAD") != ""
    assert commit(package) == ""
    (own / "new.py").touch()
    assert commit(own).endswith("+")


def test_each_end_of_each_tensor_counts() -> None:
    def tensor(*shape: int) -> Tensor:
        return Tensor(np.zeros(shape, np.float32), shape)

    shapes = {"matrix": (300, 400), "norm": (7,), "experts": (3, 300, 400), "one": (1, 40_000)}
    weights = {name: tensor(*shape) for name, shape in shapes.items()}
    before, seen = digest_of(weights), set()
    for one in weights.values():
        flat = one.data.reshape(-1)
        for place in (0, OF_A_TENSOR // 4 - 1, -1, -OF_A_TENSOR // 4):
            if -len(flat) <= place < len(flat):
                flat[place] = 1
                seen.add(digest_of(weights))
                flat[place] = 0
    assert before not in seen
    assert len(seen) == 4 + 2 + 4 + 4
    assert digest_of(weights) == before
    assert digest_of({**weights, "more": tensor(1)}) != before
    assert digest_of({}) == ""
