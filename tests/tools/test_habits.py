"""Tests which files the repository accepts, and how docstrings may begin."""

import subprocess
from pathlib import Path

import pytest

from repository import ROOT
from tools.habits import MOST_BYTES, misplaced
from tools.words import complaints


def test_no_binaries_and_no_large_files_without_a_place() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository: Git's list of files is what this reads")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    assert misplaced(listed.stdout.decode().split("\0")[:-1]) == []


@pytest.mark.parametrize(("path", "content", "complaints"), [
    ("core", b"\x7fELF\0", ["core is binary"]),
    (
        "docs/notes.md",
        b"n" * (MOST_BYTES + 1),
        ["docs/notes.md has 200,001 bytes, and the limit is 200,000"],
    ),
    ("docs/notes.md", b"n" * MOST_BYTES, []),
    ("docs/img/wide.png", b"\0" * (MOST_BYTES + 1), []),
    ("docs/wide.png", b"\0", ["docs/wide.png is binary"]),
])  # fmt: skip
def test_complaints(tmp_path: Path, path: str, content: bytes, complaints: list[str]) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(content)
    assert misplaced([path, "deleted.py"], tmp_path) == complaints


def test_first_words_of_docstrings() -> None:
    source = '''"""Of a module."""
LIMIT = 3
"""Most rows of a forward."""
ROWS: int = 4
"""Mostly rows."""

class Draft:
    """Those

    of a model."""
    size: int
    """Asks for rows."""

    async def ask(self):
        "Whether it asks."
'''
    assert complaints(source) == [
        "1: Of a module.", "3: Most rows of a forward.", "8: Those", "15: Whether it asks.",
    ]  # fmt: skip
