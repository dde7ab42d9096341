"""Plants known mistakes one at a time, and shows whether the test that is named for each fails.

python -m tools.mutants [WORD ...]

The mistakes are in ``mutants.txt``, five lines each: what is wrong, the file, the right text, the
wrong text, and the test. Words choose the mistakes whose first line has one of them. Only tests
that ``make test`` runs count. The exit status is 1 if a mistake is not found, or if a test fails
without a mistake.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
LISTED = Path(__file__).with_suffix(".txt")
SOURCES = ("src", "lab/src")
NEEDED = ("tests", "tools", "docs", "pyproject.toml", "README.md")
"""Files that tests read in addition to the sources."""
START = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
sys.path[:0] = {paths!r}
import paradecode, pytest
assert paradecode.__file__.startswith({copy!r}), paradecode.__file__
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Runs pytest on the copy. Without this, an editable installation would be found first."""


@dataclass(frozen=True)
class Mistake:
    """A mistake: a wrong text that replaces a right one.

    Attributes:
        file: path from the root of the repository.
        right: the right text, which occurs once in the file.
        test: the test that finds the mistake: a file, or ``file::function``.
    """

    name: str
    file: str
    right: str
    wrong: str
    test: str


def listed() -> list[Mistake]:
    """Read every mistake in ``mutants.txt``."""
    parts = LISTED.read_text().strip().split("\n\n")
    return [Mistake(*(line[2:] for line in part.splitlines())) for part in parts]


def fails(copy: Path, tests: list[str]) -> bool:
    """Return whether one of these tests fails on a copy of the sources.

    Raises:
        RuntimeError: pytest could not run the tests.
    """
    paths = [str(copy / source) for source in SOURCES if (copy / source).exists()]
    start = START.format(paths=paths, copy=str(copy))
    ran = subprocess.run(
        [sys.executable, "-c", start, "-x", "-m", "not slow and not wide", "-p", "no:cacheprovider",
         *tests],
        cwd=copy, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.returncode == 1


def main(words: list[str]) -> int:
    """Plant the mistakes that have one of these words in their names, or all mistakes."""
    chosen = [each for each in listed() if not words or any(word in each.name for word in words)]
    with TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        for name in (*SOURCES, *NEEDED):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, dirs_exist_ok=True)
            elif (ROOT / name).exists():
                shutil.copy(ROOT / name, copy / name)
        if fails(copy, sorted({each.test for each in chosen})):
            print("A test fails without a mistake: mend it first.")
            return 1
        survived = 0
        for mistake in chosen:
            file = copy / mistake.file
            right = file.read_text()
            file.write_text(right.replace(mistake.right, mistake.wrong))
            found = fails(copy, [mistake.test])
            file.write_text(right)
            survived += not found
            print(
                f"{'killed' if found else 'SURVIVED'}  {mistake.name}  {mistake.test}", flush=True
            )
    print(f"{len(chosen) - survived} of {len(chosen)} mistakes are found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
